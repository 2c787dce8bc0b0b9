//! Applies the defaults that a cluster would apply to a Pod, in the same order, so that `get -o yaml` shows
//! the same. Fields that nodlet does not act on are defaulted too.

use nodlet_rootfs::Reference;
use serde_json::{Map, Value, json};

use super::validate::{APPARMOR, of_containers};
use nodlet_core::spec::{MAX_CONTAINERS, Quantity};

/// Applies all defaults. The object must already match the schema.
pub(super) fn apply(pod: &mut Value) {
    app_armor_fields(pod);
    let Some(spec) = child(pod, "spec") else { return };
    default(spec, "dnsPolicy", || json!("ClusterFirst"));
    default(spec, "restartPolicy", || json!("Always"));
    default(spec, "schedulerName", || json!("default-scheduler"));
    absent(spec, "securityContext", || json!({}));
    absent(spec, "terminationGracePeriodSeconds", || json!(30));
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
        // Old clients could write it, and Kubernetes reads it as one second.
        spec.insert("terminationGracePeriodSeconds".to_owned(), json!(1));
    }
    absent(spec, "enableServiceLinks", || json!(true));
    // The old name of the field is kept equal to the new one.
    if let Some(name) = ["serviceAccountName", "serviceAccount"].iter().find_map(|name| text(spec, name)) {
        spec.insert("serviceAccountName".to_owned(), json!(name));
        spec.insert("serviceAccount".to_owned(), json!(name));
    }
    let node = spec.get_mut("affinity").and_then(|affinity| child(affinity, "nodeAffinity"));
    for term in
        node.into_iter().flat_map(|node| children(node, "preferredDuringSchedulingIgnoredDuringExecution"))
    {
        absent(term, "preference", || json!({}));
    }
    if let Some(Value::Object(context)) = spec.get_mut("securityContext") {
        for sysctl in children(context, "sysctls") {
            absent(sysctl, "value", || json!(""));
        }
    }
    // Behind a feature gate that is off by default (`DropDisabledPodFields`).
    spec.remove("schedulingGroup");
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or(false);

    for volume in children(spec, "volumes") {
        self::volume(volume);
    }
    for list in CONTAINERS {
        // No pod has more, and each gets a dozen fields.
        for container in children(spec, list).take(MAX_CONTAINERS + 1) {
            self::container(container, host_network);
        }
    }
    pod_requests(spec);
}

/// The lists of containers of a pod.
pub(super) const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// The `appArmorProfile` of a pod's spec or of a container.
pub(super) fn app_armor(owner: &Value) -> Option<&Value> {
    owner["securityContext"].get("appArmorProfile").filter(|profile| !profile.is_null())
}

/// The field with the meaning of an AppArmor annotation; `None` for an invalid value.
pub(super) fn app_armor_field(annotation: &str) -> Option<Value> {
    match (annotation, annotation.strip_prefix("localhost/")) {
        ("unconfined", _) => Some(json!({ "type": "Unconfined" })),
        ("runtime/default", _) => Some(json!({ "type": "RuntimeDefault" })),
        (_, Some(name)) if !name.is_empty() && name.trim() == name && name.len() <= 4095 => {
            Some(json!({ "type": "Localhost", "localhostProfile": name }))
        }
        _ => None,
    }
}

/// Sets the field `appArmorProfile` of each container from its annotation, unless it is set, or the pod's field has the
/// same value (`applyAppArmorVersionSkew`).
fn app_armor_fields(pod: &mut Value) {
    let profiles: Vec<(String, Value)> = pod["metadata"]["annotations"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| {
            Some((key.strip_prefix(APPARMOR)?.to_owned(), app_armor_field(value.as_str()?)?))
        })
        .filter(|(_, profile)| app_armor(&pod["spec"]) != Some(profile))
        .collect();
    for (name, profile) in profiles {
        let Some(spec) = child(pod, "spec") else { return };
        for list in CONTAINERS {
            for container in children(spec, list).filter(|one| one.get("name") == Some(&json!(name))) {
                absent(container, "securityContext", || json!({}));
                if let Some(Value::Object(context)) = container.get_mut("securityContext") {
                    absent(context, "appArmorProfile", || profile.clone());
                }
            }
        }
    }
}

/// Sets missing requests of the pod as a whole, if it has limits (`defaultPodRequests`): to what its containers
/// request, or else to the limit.
fn pod_requests(spec: &mut Map<String, Value>) {
    if let Some(Value::Object(of_pod)) = spec.get_mut("resources") {
        canonical_lists(of_pod);
    }
    let limits = spec.get("resources").and_then(|of_pod| of_pod.get("limits"));
    let Some(Value::Object(limits)) = limits.filter(|limits| *limits != &json!({})).cloned() else { return };
    let containers = Value::Object(spec.clone());
    let Some(Value::Object(of_pod)) = spec.get_mut("resources") else { return };
    let requests = of_pod.entry("requests").or_insert_with(|| json!({}));
    let Some(requests) = requests.as_object_mut() else { return };
    for name in ["cpu", "memory"] {
        let requested = of_containers(&containers, "requests", name);
        if let Some(requested) = requested.filter(|_| !requests.contains_key(name)) {
            requests.insert(name.to_owned(), requested.to_string().into());
        }
    }
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

fn volume(volume: &mut Map<String, Value>) {
    if volume.keys().all(|field| field == "name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    if let Some(Value::Object(path)) = volume.get_mut("hostPath") {
        absent(path, "type", || json!(""));
    }
    if let Some(Value::Object(directory)) = volume.get_mut("emptyDir") {
        canonical(directory.get_mut("sizeLimit"), false);
    }
    if let Some(Value::Object(image)) = volume.get_mut("image") {
        let reference = text(image, "reference").unwrap_or_default();
        default(image, "pullPolicy", || json!(pull_policy(&reference)));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(Value::Object(source)) = volume.get_mut(source) {
            absent(source, "defaultMode", || json!(0o644));
        }
    }
    for file in volume.get_mut("downwardAPI").into_iter().flat_map(items) {
        field_selectors(file);
    }
    if let Some(Value::Object(template)) =
        volume.get_mut("ephemeral").and_then(|claim| claim.get_mut("volumeClaimTemplate"))
        && let spec @ Value::Object(_) = template.entry("spec").or_insert_with(|| json!({}))
    {
        super::claim::default_claim(spec);
    }
    if let Some(Value::Object(projected)) = volume.get_mut("projected") {
        // The only list without `omitempty`.
        projected.entry("sources").or_insert(Value::Null);
        for source in children(projected, "sources") {
            for file in source.get_mut("downwardAPI").into_iter().flat_map(items) {
                field_selectors(file);
            }
        }
    }
}

fn items(source: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    source.as_object_mut().into_iter().flat_map(|source| children(source, "items"))
}

/// Applies the defaults of `fieldRef` and `resourceFieldRef`.
fn field_selectors(source: &mut Map<String, Value>) {
    if let Some(Value::Object(field)) = source.get_mut("fieldRef") {
        default(field, "apiVersion", || json!("v1"));
    }
    if let Some(Value::Object(field)) = source.get_mut("resourceFieldRef") {
        absent(field, "divisor", || json!("0"));
        canonical(field.get_mut("divisor"), false);
    }
}

fn container(container: &mut Map<String, Value>, host_network: bool) {
    let image = text(container, "image").unwrap_or_default();
    default(container, "imagePullPolicy", || json!(pull_policy(&image)));
    default(container, "terminationMessagePath", || json!("/dev/termination-log"));
    default(container, "terminationMessagePolicy", || json!("File"));
    for port in children(container, "ports") {
        default(port, "protocol", || json!("TCP"));
        if host_network {
            let number = port.get("containerPort").cloned().unwrap_or_else(|| json!(0));
            default(port, "hostPort", || number);
        }
    }
    for variable in children(container, "env") {
        if let Some(Value::Object(source)) = variable.get_mut("valueFrom") {
            self::field_selectors(source);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(Value::Object(probe)) = container.get_mut(name) {
            self::probe(probe);
        }
    }
    absent(container, "resources", || json!({}));
    if let Some(Value::Object(resources)) = container.get_mut("resources") {
        self::resources(resources);
    }
    if let Some(Value::Object(lifecycle)) = container.get_mut("lifecycle") {
        for hook in lifecycle.values_mut() {
            if let Value::Object(hook) = hook {
                http_get(hook);
                if let Some(Value::Object(sleep)) = hook.get_mut("sleep") {
                    absent(sleep, "seconds", || json!(0));
                }
            }
        }
    }
}

fn probe(probe: &mut Map<String, Value>) {
    for (field, value) in
        [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        default(probe, field, || json!(value));
    }
    http_get(probe);
    if let Some(Value::Object(grpc)) = probe.get_mut("grpc") {
        absent(grpc, "service", || json!(""));
    }
}

fn http_get(handler: &mut Map<String, Value>) {
    if let Some(Value::Object(http)) = handler.get_mut("httpGet") {
        default(http, "path", || json!("/"));
        default(http, "scheme", || json!("HTTP"));
        for header in children(http, "httpHeaders") {
            absent(header, "value", || json!(""));
        }
    }
}

/// Makes quantities canonical, rounded up to thousandths. A resource with a limit and no request gets the
/// limit as its request.
fn resources(resources: &mut Map<String, Value>) {
    canonical_lists(resources);
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    if limits.is_empty() && !resources.contains_key("requests") {
        return;
    }
    absent(resources, "requests", || json!({}));
    if let Some(Value::Object(requests)) = resources.get_mut("requests") {
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

fn canonical_lists(resources: &mut Map<String, Value>) {
    for list in ["limits", "requests"] {
        if let Some(Value::Object(list)) = resources.get_mut(list) {
            for quantity in list.values_mut() {
                canonical(Some(quantity), true);
            }
        }
    }
}

fn canonical(quantity: Option<&mut Value>, rounded: bool) {
    if let Some(Value::String(text)) = quantity
        && let Ok(shown) = Quantity::shown(text, rounded)
    {
        *text = shown;
    }
}

/// `Always` for the tag `latest`, explicit or implied, otherwise `IfNotPresent`.
fn pull_policy(image: &str) -> &'static str {
    match Reference::parse(image) {
        Ok(reference) if reference.tag() == Some("latest") => "Always",
        // An invalid image name is reported later, when the image is looked up.
        Ok(_) | Err(_) => "IfNotPresent",
    }
}

fn child<'a>(value: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    value.get_mut(name)?.as_object_mut()
}

fn children<'a>(
    map: &'a mut Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> + use<'a> {
    map.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn text(map: &Map<String, Value>, name: &str) -> Option<String> {
    map.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Sets the field if it is absent.
fn absent(map: &mut Map<String, Value>, name: &str, value: impl FnOnce() -> Value) {
    if !map.contains_key(name) {
        map.insert(name.to_owned(), value());
    }
}

/// Sets the field if it is absent or its type's zero, which Kubernetes cannot distinguish.
fn default(map: &mut Map<String, Value>, name: &str, value: impl FnOnce() -> Value) {
    let zero = match map.get(name) {
        None => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) => false,
    };
    if zero {
        map.insert(name.to_owned(), value());
    }
}
