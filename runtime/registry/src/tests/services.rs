use std::collections::BTreeMap;

use nodlet_services::allocation::ReservedPort;
use nodlet_services::catalog::Catalog;
use nodlet_services::service::Protocol;
use nodlet_services::slices::PodEndpoint;

use super::*;

fn world() -> World {
    let mut world = World::new();
    world.serve();
    world
}

fn service(name: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": {"team": "a"}},
        "spec": {"ports": [{"port": 80, "targetPort": "http"}], "selector": {"app": "web"}},
    });
    let spec = spec.as_object().cloned().unwrap_or_default();
    object["spec"].as_object_mut().expect("an object").extend(spec);
    object
}

fn key(resource: &'static str, name: &str) -> Key {
    Key::new(resource, "default", name)
}

/// A published object.
fn shown(world: &World, resource: &'static str, name: &str) -> Value {
    let object = world.objects.get(&key(resource, name)).unwrap_or_else(|| panic!("no {resource} {name}"));
    serde_json::from_str(&object.json).expect("it is JSON")
}

fn ip(world: &World, name: &str) -> String {
    shown(world, "services", name)["spec"]["clusterIP"].as_str().unwrap_or("-").to_owned()
}

fn name(name: &str) -> DefinitionName {
    (Kind::Service, "default".into(), name.into())
}

/// Changes a Service as a client does. Returns the reply.
fn patch(world: &mut World, service: &str, patch: Value) -> Result<Accepted, Status> {
    let change = Change::Patch(PatchKind::Merge, patch);
    let changed = world.registry.change_definition(&name(service), change)?;
    world.apply(changed, APPLY)
}

fn delete(world: &mut World, of: &DefinitionName) -> Result<(), Status> {
    let (_, path) = world.registry.delete_definition(of, &Preconditions::default())?;
    world.remove(&path.to_string_lossy());
    Ok(())
}

fn endpoint(name: &str, address: &str) -> PodEndpoint {
    PodEndpoint {
        namespace: "default".into(),
        name: name.into(),
        uid: name.into(),
        labels: BTreeMap::from([("app".into(), "web".into())]),
        addresses: vec![address.parse().expect("an address")],
        is_ready: true,
        is_terminating: false,
        has_ended: false,
        hostname: None,
        subdomain: None,
        node: NODE.into(),
        ports: vec![("http".into(), Protocol::Tcp, 8080)],
    }
}

fn publish(world: &mut World, pods: &[PodEndpoint]) -> Rc<Catalog> {
    let board = vec!["192.0.2.7".parse().expect("an address")];
    world.registry.publish_services(&ServiceView { pods: pods.to_vec(), board, now: NOW })
}

/// The name of the one slice of a Service.
fn slice(world: &World, service: &str) -> String {
    let (slices, _) = world.objects.list("endpointslices", None);
    let mut names = slices.into_iter().map(|(key, _)| key.name.to_string());
    names.find(|name| name.rsplit_once('-').is_some_and(|(before, _)| before == service)).expect("a slice")
}

#[test]
fn a_service_is_completed_before_it_is_stored_and_keeps_what_it_has() {
    let mut world = world();
    let created = world.apply(service("web", json!({"type": "NodePort"})), CREATE).expect("it is new");
    let spec = &created.object["spec"];
    assert_eq!((&spec["clusterIP"], &spec["clusterIPs"]), (&json!("10.96.0.17"), &json!(["10.96.0.17"])));
    assert_eq!((&spec["ipFamilies"], &spec["ipFamilyPolicy"]), (&json!(["IPv4"]), &json!("SingleStack")));
    assert_eq!(spec["ports"][0]["nodePort"], 30086);
    assert_eq!(created.object["status"], json!({"loadBalancer": {}}));
    let text = world.files[Path::new("/applied/service_default_web.json")].clone();
    assert!(text.contains("10.96.0.17") && text.contains("30086") && !text.contains("status"), "{text}");
    // The manifest names none of that, and is the same Service.
    assert_eq!(line(world.apply(service("web", json!({"type": "NodePort"})), APPLY)), "Unchanged");
    let changed =
        world.apply(service("web", json!({"type": "NodePort", "sessionAffinity": "ClientIP"})), APPLY);
    let changed = changed.expect("it may change").object;
    assert_eq!(
        (&changed["spec"]["clusterIP"], &changed["spec"]["ports"][0]["nodePort"]),
        (&json!("10.96.0.17"), &json!(30086))
    );
    assert!(world.registry.has_services());
}

#[test]
fn a_dry_run_allocates_nothing() {
    let mut world = world();
    let dry = RequestOptions { dry_run: true, ..CREATE };
    let tried = world.apply(service("web", json!({})), dry).expect("it is new").object;
    assert_eq!(
        (&tried["spec"]["clusterIP"], &tried["status"]),
        (&json!("10.96.0.17"), &json!({"loadBalancer": {}}))
    );
    assert!(world.registry.allocations().is_none());
    world.apply(service("other", json!({})), CREATE).expect("it is new");
    assert_eq!(ip(&world, "other"), "10.96.0.17");
}

#[test]
fn requests_that_cannot_be_allocated_are_rejected_as_by_kubernetes() {
    let mut world = world();
    world
        .apply(service("web", json!({"type": "NodePort", "clusterIP": "10.96.0.5"})), CREATE)
        .expect("it is new");
    world.registry.reserve_ports(vec![ReservedPort {
        port: 30500,
        protocol: Protocol::Tcp,
        holder: "the hostPort of pod default/db".into(),
    }]);
    let port = |number: u16| json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": number}]});
    for (spec, how, expected) in [
        (
            json!({"clusterIP": "10.96.0.5"}),
            CREATE,
            "422 Invalid: Service \"x\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.5\"]: failed to allocate IP 10.96.0.5: provided IP is already allocated",
        ),
        (
            port(30086),
            CREATE,
            "422 Invalid: Service \"x\" is invalid: spec.ports[0].nodePort: Invalid value: 30086: provided port is already allocated: Service default/web has it",
        ),
        (
            port(30500),
            CREATE,
            "422 Invalid: Service \"x\" is invalid: spec.ports[0].nodePort: Invalid value: 30500: provided port is already allocated: the hostPort of pod default/db has it",
        ),
        (
            json!({"externalIPs": ["203.0.113.5"]}),
            CREATE,
            "403 Forbidden: services \"x\" is forbidden: spec.externalIPs[0]: Forbidden: the configuration of the board does not allow the external address 203.0.113.5",
        ),
        (
            json!({"externalIPs": ["198.51.100.9"]}),
            CREATE,
            "Created; spec.externalIPs is deprecated and may no longer be implemented in some clusters",
        ),
    ] {
        assert_eq!(line(world.apply(service("x", spec.clone()), how)), expected, "{spec}");
    }
    let refused = line(patch(&mut world, "web", json!({"spec": {"clusterIP": "10.96.0.6"}})));
    let expected = "422 Invalid: Service \"web\" is invalid: spec.clusterIPs[0]: Invalid value: [\"10.96.0.6\"]: may not change once set";
    assert_eq!(refused, expected);
    assert_eq!(
        line(world.apply(service("web", json!({})), CREATE)),
        "409 AlreadyExists: services \"web\" already exists"
    );
    assert_eq!(ip(&world, "web"), "10.96.0.5");
    let cause = world
        .apply(service("y", json!({"clusterIP": "10.96.0.5"})), CREATE)
        .expect_err("it is taken")
        .details;
    assert_eq!(cause.expect("details")["causes"][0]["field"], "spec.clusterIPs");
}

#[test]
fn changes_of_the_type_release_and_allocate() {
    let mut world = world();
    world.apply(service("web", json!({"type": "NodePort"})), CREATE).expect("it is new");
    let spec = patch(&mut world, "web", json!({"spec": {"type": "ClusterIP"}}))
        .expect("it may change")
        .object["spec"]
        .clone();
    assert_eq!((&spec["clusterIP"], &spec["ports"][0]["nodePort"]), (&json!("10.96.0.17"), &Value::Null));
    assert_eq!(spec["externalTrafficPolicy"], Value::Null);
    let balancer = json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}});
    let accepted = patch(&mut world, "web", balancer).expect("it may change");
    assert_eq!(accepted.object["spec"]["ports"][0]["nodePort"], 30087);
    assert_eq!(accepted.object["spec"]["healthCheckNodePort"], 30088);
    assert!(accepted.warnings[0].starts_with("spec.healthCheckNodePort: "), "{:?}", accepted.warnings);
    let name =
        json!({"spec": {"type": "ExternalName", "externalName": "a.example", "externalTrafficPolicy": null}});
    let spec = patch(&mut world, "web", name).expect("it may change").object["spec"].clone();
    assert_eq!(
        (&spec["clusterIP"], &spec["ipFamilies"], &spec["healthCheckNodePort"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    // Its address is free, and is not used before all others were.
    world.apply(service("other", json!({})), CREATE).expect("it is new");
    assert_eq!(ip(&world, "other"), "10.96.0.18");
    world.apply(service("again", json!({"clusterIP": "10.96.0.17"})), CREATE).expect("it is free");
}

#[test]
fn services_keep_their_addresses_over_crashes_and_reboots() {
    let mut world = world();
    world.file("/site/a.json", &service("file", json!({"type": "NodePort"})).to_string());
    world.apply(service("applied", json!({})), CREATE).expect("it is new");
    let before = [
        shown(&world, "services", "file")["spec"].clone(),
        shown(&world, "services", "applied")["spec"].clone(),
    ];
    assert_eq!(before[0]["clusterIP"], "10.96.0.17");
    for power in [false, true] {
        world.crash(power);
        let after = [
            shown(&world, "services", "file")["spec"].clone(),
            shown(&world, "services", "applied")["spec"].clone(),
        ];
        assert_eq!(after, before);
    }
    // The address of a deleted Service is not the next one.
    world.remove("/site/a.json");
    assert!(world.objects.get(&key("services", "file")).is_none());
    world.crash(true);
    world.file("/site/b.json", &service("new", json!({})).to_string());
    assert_eq!(ip(&world, "new"), "10.96.0.19");
    // Without the saved allocations, a Service of the API has the address of its object, and nobody else gets it.
    world.allocations = None;
    world.crash(true);
    assert_eq!(ip(&world, "applied"), "10.96.0.18");
    assert_ne!(ip(&world, "new"), "10.96.0.18");
}

#[test]
fn services_of_an_earlier_range_get_other_addresses() {
    let mut world = world();
    world.file("/site/a.json", &service("file", json!({"type": "NodePort"})).to_string());
    world.apply(service("applied", json!({})), CREATE).expect("it is new");
    let port = shown(&world, "services", "file")["spec"]["ports"][0]["nodePort"].clone();
    let earlier = |text: &str| text.replace("10.96.0.", "10.95.0.");
    let saved = String::from_utf8(world.allocations.take().expect("they are saved")).expect("it is JSON");
    world.allocations = Some(earlier(&saved).into_bytes());
    for (path, text) in world.files.clone() {
        world.files.insert(path, earlier(&text));
    }
    world.crash(true);
    let ips = [ip(&world, "file"), ip(&world, "applied")];
    assert!(ips.iter().all(|ip| ip.starts_with("10.96.0.")) && ips[0] != ips[1], "{ips:?}");
    assert_eq!(shown(&world, "services", "file")["spec"]["ports"][0]["nodePort"], port);
    // The file of the client still has the earlier address.
    world.crash(true);
    assert_eq!([ip(&world, "file"), ip(&world, "applied")], ips);
}

#[test]
fn a_service_of_a_file_is_refused_by_name_and_tried_again() {
    let mut world = world();
    world.apply(service("web", json!({"clusterIP": "10.96.0.5"})), CREATE).expect("it is new");
    let refused = world.file("/site/a.json", &service("file", json!({"clusterIP": "10.96.0.5"})).to_string());
    let expected = "/site/a.json: The Service \"file\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.5\"]: failed to allocate IP 10.96.0.5: provided IP is already allocated";
    assert_eq!(refused, [expected]);
    assert!(world.objects.get(&key("services", "file")).is_none());
    delete(&mut world, &name("web")).expect("a client made it");
    assert_eq!(ip(&world, "file"), "10.96.0.5");
    let refused = line(world.apply(service("file", json!({"sessionAffinity": "ClientIP"})), APPLY));
    assert_eq!(
        refused,
        "403 Forbidden: services \"file\" is forbidden: it is defined by /site/a.json; change that file"
    );
    // An edit of the file may change what a client may not.
    let changed = world.file("/site/a.json", &service("file", json!({"clusterIP": "10.96.0.6"})).to_string());
    assert_eq!((changed, ip(&world, "file")), (vec![], "10.96.0.6".to_owned()));
    world.registry = Registry::new(sources(), NODE, world.objects.clone());
    let refused = world.file("/site/a.json", &service("file", json!({})).to_string());
    assert_eq!(
        refused,
        ["/site/a.json: The Service \"file\" is invalid: this agent was started without Services"]
    );
}

#[test]
fn slices_and_endpoints_follow_the_pods_and_clients_cannot_change_them() {
    let mut world = world();
    world.apply(service("web", json!({})), CREATE).expect("it is new");
    world.apply(service("db", json!({"selector": {"app": "db"}})), CREATE).expect("it is new");
    let pods = [endpoint("a", "10.1.0.1"), PodEndpoint { is_ready: false, ..endpoint("b", "10.1.0.2") }];
    let catalog = publish(&mut world, &pods);
    assert_eq!(catalog.services.len(), 2);
    assert!(catalog.namespaces.contains("default"));
    let made = slice(&world, "web");
    let object = shown(&world, "endpointslices", &made);
    let service = shown(&world, "services", "web");
    assert_eq!(
        object["metadata"]["labels"],
        json!({"team": "a", "kubernetes.io/service-name": "web",
               "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"})
    );
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], service["metadata"]["uid"]);
    assert_eq!(object["ports"], json!([{"name": "", "protocol": "TCP", "port": 8080}]));
    assert_eq!(
        object["endpoints"][0],
        json!({"addresses": ["10.1.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
               "nodeName": NODE, "targetRef": {"kind": "Pod", "namespace": "default", "name": "a", "uid": "a"}})
    );
    let subsets = shown(&world, "endpoints", "web")["subsets"].clone();
    assert_eq!(subsets[0]["addresses"][0]["ip"], "10.1.0.1");
    assert_eq!(subsets[0]["notReadyAddresses"][0]["ip"], "10.1.0.2");
    assert_eq!(subsets[0]["ports"], json!([{"protocol": "TCP", "port": 8080}]));

    // What is published is what the parser reads.
    let parsed = nodlet_services::service::EndpointSlice::parse(&object).expect("it is valid");
    assert_eq!(catalog.services[&("default".into(), "web".into())].slices, [parsed]);

    // Nothing changes: nothing is published.
    let version = world.objects.version();
    assert!(Rc::ptr_eq(&publish(&mut world, &pods), &catalog));
    assert_eq!(world.objects.version(), version);
    // A pod that becomes ready changes one slice and its Endpoints.
    let next = publish(&mut world, &[endpoint("a", "10.1.0.1"), endpoint("b", "10.1.0.2")]);
    assert!(!Rc::ptr_eq(&next, &catalog));
    assert_eq!(world.objects.version(), version + 2);

    let of: DefinitionName = (Kind::EndpointSlice, "default".into(), made.as_str().into());
    let refusal = format!(
        "endpointslices.discovery.k8s.io \"{made}\" is forbidden: it is made of Service default/web: change the Service or its pods"
    );
    assert_eq!(delete(&mut world, &of).expect_err("the agent made it").message, refusal);
    let mut changed = object.clone();
    changed["endpoints"] = json!([]);
    changed["metadata"].as_object_mut().expect("an object").remove("resourceVersion");
    assert_eq!(world.apply(changed, APPLY).expect_err("the agent made it").message, refusal);

    delete(&mut world, &name("web")).expect("a client made it");
    publish(&mut world, &pods);
    assert!(world.objects.get(&key("endpointslices", &made)).is_none());
    assert!(
        world.objects.get(&key("endpoints", "web")).is_none()
            && world.objects.get(&key("endpoints", "db")).is_some()
    );
}

#[test]
fn a_slice_of_a_file_takes_the_place_of_one_that_is_made_until_the_file_goes() {
    let mut world = world();
    world.apply(service("web", json!({})), CREATE).expect("it is new");
    let pods = [endpoint("a", "10.1.0.1")];
    publish(&mut world, &pods);
    let made = slice(&world, "web");
    let address = |world: &World| {
        shown(world, "endpointslices", &made)["endpoints"][0]["addresses"][0].as_str().map(str::to_owned)
    };
    let path = "/site/slice.yaml";
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": made, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.50"]}],
    });
    world.file(path, &object.to_string());
    publish(&mut world, &pods);
    assert_eq!(address(&world).as_deref(), Some("192.0.2.50"));
    world.remove(path);
    publish(&mut world, &pods);
    assert_eq!(address(&world).as_deref(), Some("10.1.0.1"), "the pods have not changed");
}

#[test]
fn a_service_without_selector_has_the_slices_of_its_users() {
    let mut world = world();
    let mut outside = service("outside", json!({}));
    outside["spec"].as_object_mut().expect("an object").remove("selector");
    world.apply(outside, CREATE).expect("it is new");
    let slice = |address: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "outside-1", "labels": {"kubernetes.io/service-name": "outside"}},
            "addressType": "IPv4", "ports": [{"port": 5432}], "endpoints": [{"addresses": [address]}],
        })
    };
    assert_eq!(line(world.apply(slice("192.0.2.50"), CREATE)), "Created");
    let address = |catalog: &Catalog| {
        let entry = &catalog.services[&("default".into(), "outside".into())];
        entry.slices.iter().map(|slice| slice.endpoints[0].addresses[0].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(address(&publish(&mut world, &[endpoint("a", "10.1.0.1")])), ["192.0.2.50"]);
    assert_eq!(line(world.apply(slice("192.0.2.51"), APPLY)), "Configured");
    assert_eq!(address(&publish(&mut world, &[])), ["192.0.2.51"]);
    assert!(world.objects.get(&key("endpoints", "outside")).is_none());
    let of: DefinitionName = (Kind::EndpointSlice, "default".into(), "outside-1".into());
    delete(&mut world, &of).expect("a client made it");
    assert_eq!(address(&publish(&mut world, &[])), [""; 0]);
}

#[test]
fn a_load_balancer_has_the_addresses_of_the_board_unless_its_port_is_taken() {
    let mut world = world();
    let balancer = |port: u16| json!({"type": "LoadBalancer", "ports": [{"port": port}]});
    world.apply(service("web", balancer(80)), CREATE).expect("it is new");
    world.apply(service("second", balancer(80)), CREATE).expect("it is new");
    world.apply(service("ssh", balancer(22)), CREATE).expect("it is new");
    world.registry.reserve_ports(vec![ReservedPort {
        port: 22,
        protocol: Protocol::Tcp,
        holder: "a process of the board".into(),
    }]);
    let catalog = publish(&mut world, &[]);
    let ingress =
        |world: &World, name: &str| shown(world, "services", name)["status"]["loadBalancer"].clone();
    let board = json!({"ingress": [{"ip": "192.0.2.7", "ipMode": "VIP"}]});
    // The older of two has the port; of two of one time, the first by name.
    assert_eq!(ingress(&world, "second"), board);
    assert_eq!((ingress(&world, "web"), ingress(&world, "ssh")), (json!({}), json!({})));
    assert_eq!(
        world.read(),
        [
            "/applied/service_default_ssh.json: Service default/ssh gets no address of the board, since it needs port \
             22/TCP of the board: a process of the board has it",
            "/applied/service_default_web.json: Service default/web gets no address of the board, since it needs port \
             80/TCP of the board: Service default/second has it",
        ]
    );
    assert!(catalog.services[&("default".into(), "ssh".into())].service.external_ips.is_empty());
    delete(&mut world, &name("second")).expect("a client made it");
    publish(&mut world, &[]);
    assert_eq!(ingress(&world, "web"), board);
}

#[test]
fn a_change_that_is_not_written_releases_no_port() {
    let mut world = world();
    let ports = |number: u16| json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": number}]});
    world.apply(service("web", ports(30080)), CREATE).expect("it is new");
    let change = Change::Patch(PatchKind::Merge, json!({"spec": ports(30090)}));
    let moved = world.registry.change_definition(&name("web"), change).expect("it exists");
    let decided = world.registry.apply_definition(Kind::Service, moved, APPLY);
    let Ok(Decision::Write(write)) = decided else { panic!("{decided:?}") };
    world.registry.not_written(&write);
    let refused = world.apply(service("other", ports(30080)), CREATE).expect_err("web has it");
    assert!(refused.message.contains("provided port is already allocated"), "{}", refused.message);
    world.apply(service("other", ports(30090)), CREATE).expect("nobody has it");
}

#[test]
fn a_node_port_on_which_the_board_listens_is_not_served() {
    let mut world = world();
    world.apply(service("web", json!({"type": "NodePort"})), CREATE).expect("it is new");
    let port =
        |catalog: &Catalog| catalog.services[&("default".into(), "web".into())].service.ports[0].node_port;
    assert_eq!(port(&publish(&mut world, &[])), Some(30086));
    let reserved =
        ReservedPort { port: 30086, protocol: Protocol::Tcp, holder: "a process of the board".into() };
    assert!(
        world.registry.reserve_ports(vec![reserved.clone()]) && !world.registry.reserve_ports(vec![reserved])
    );
    assert_eq!(port(&publish(&mut world, &[])), None);
    assert_eq!(
        world.read(),
        [
            "/applied/service_default_web.json: Service default/web is not reachable at node port 30086/TCP: a process of \
             the board has it"
        ]
    );
    world.registry.reserve_ports(Vec::new());
    assert_eq!((world.read(), port(&publish(&mut world, &[]))), (Vec::new(), Some(30086)));
}
