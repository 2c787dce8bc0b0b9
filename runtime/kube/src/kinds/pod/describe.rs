//! A pod, as `kubectl describe pod` prints it.

use serde_json::Value;

use crate::kinds::describe::Tabs;
use crate::kinds::describe::text::{annotations, date, entries, labels, list, of, quantity, several, since};

pub(super) fn describe(out: &mut Tabs, pod: &Value, _: &[Value]) {
    head(out, pod);
    let (spec, status) = (&pod["spec"], &pod["status"]);
    if spec["resources"].is_object() {
        out.line(0, "Resources:");
        resources(out, 1, &spec["resources"]);
    }
    if !list(&spec["initContainers"]).is_empty() {
        containers(out, "Init Containers", &spec["initContainers"], &status["initContainerStatuses"], pod);
    }
    containers(out, "Containers", &spec["containers"], &status["containerStatuses"], pod);
    if !list(&spec["ephemeralContainers"]).is_empty() {
        let statuses = &status["ephemeralContainerStatuses"];
        containers(out, "Ephemeral Containers", &spec["ephemeralContainers"], statuses, pod);
    }
    conditions(out, spec, status);
    volumes(out, &spec["volumes"]);
    out.line(0, &format!("QoS Class:\t{}", of(&status["qosClass"])));
    labels(out, "Node-Selectors", &spec["nodeSelector"]);
    tolerations(out, &spec["tolerations"]);
    spread(out, &spec["topologySpreadConstraints"]);
}

fn head(out: &mut Tabs, pod: &Value) {
    let (metadata, spec, status) = (&pod["metadata"], &pod["spec"], &pod["status"]);
    let mut field = |name: &str, value: &str| out.line(0, &format!("{name}:\t{value}"));
    field("Name", of(&metadata["name"]));
    field("Namespace", of(&metadata["namespace"]));
    if let Some(priority) = spec["priority"].as_i64() {
        field("Priority", &priority.to_string());
    }
    for (name, value) in [
        ("Priority Class Name", &spec["priorityClassName"]),
        ("Runtime Class Name", &spec["runtimeClassName"]),
        ("Service Account", &spec["serviceAccountName"]),
    ] {
        if !of(value).is_empty() {
            field(name, of(value));
        }
    }
    match of(&spec["nodeName"]) {
        "" => field("Node", "<none>"),
        node => field("Node", &format!("{node}/{}", of(&status["hostIP"]))),
    }
    if status["startTime"].is_string() {
        field("Start Time", &date(&status["startTime"]));
    }
    labels(out, "Labels", &metadata["labels"]);
    annotations(out, &metadata["annotations"]);
    let mut field = |name: &str, value: &str| out.line(0, &format!("{name}:\t{value}"));
    let phase = of(&status["phase"]);
    if metadata["deletionTimestamp"].is_string() && !["Failed", "Succeeded"].contains(&phase) {
        field("Status", &format!("Terminating (lasts {})", since(&metadata["deletionTimestamp"])));
        let grace = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or_default();
        field("Termination Grace Period", &format!("{grace}s"));
    } else {
        field("Status", phase);
    }
    for (name, value) in [("Reason", &status["reason"]), ("Message", &status["message"])] {
        if !of(value).is_empty() {
            field(name, of(value));
        }
    }
    seccomp(out, 0, &spec["securityContext"]);
    out.line(0, &format!("IP:\t{}", of(&status["podIP"])));
    match list(&status["podIPs"]) {
        [] => out.line(0, "IPs:\t<none>"),
        ips => {
            out.line(0, "IPs:");
            ips.iter().for_each(|ip| out.line(1, &format!("IP:\t{}", of(&ip["ip"]))));
        }
    }
    let owners = list(&metadata["ownerReferences"]);
    if let Some(owner) = owners.iter().find(|owner| owner["controller"] == true) {
        out.line(0, &format!("Controlled By:\t{}/{}", of(&owner["kind"]), of(&owner["name"])));
    }
}

fn seccomp(out: &mut Tabs, level: usize, context: &Value) {
    let profile = &context["seccompProfile"];
    if profile.is_object() {
        out.line(level, &format!("SeccompProfile:\t{}", of(&profile["type"])));
    }
}

fn containers(out: &mut Tabs, label: &str, containers: &Value, statuses: &Value, pod: &Value) {
    out.line(0, &format!("{label}:"));
    for container in list(containers) {
        let status = list(statuses).iter().rfind(|status| status["name"] == container["name"]);
        basics(out, container, status);
        for (title, field) in [("Command:", "command"), ("Args:", "args")] {
            let words = list(&container[field]);
            if !words.is_empty() {
                out.line(2, title);
            }
            words.iter().flat_map(|word| of(word).split('\n')).for_each(|line| out.line(3, line));
        }
        if let Some(status) = status {
            state(out, "State", &status["state"]);
            if status["lastState"]["terminated"].is_object() {
                state(out, "Last State", &status["lastState"]);
            }
            let ready = if status["ready"] == true { "True" } else { "False" };
            out.line(2, &format!("Ready:\t{ready}"));
            out.line(2, &format!("Restart Count:\t{}", status["restartCount"].as_i64().unwrap_or_default()));
        }
        resources(out, 2, &container["resources"]);
        for (title, field) in
            [("Liveness", "livenessProbe"), ("Readiness", "readinessProbe"), ("Startup", "startupProbe")]
        {
            if container[field].is_object() {
                out.line(2, &format!("{title}:\t{}", probe(&container[field])));
            }
        }
        environment(out, container, pod);
        mounts(out, container);
    }
}

/// `resources` of a container, or of the pod as a whole.
fn resources(out: &mut Tabs, level: usize, resources: &Value) {
    for (title, field) in [("Limits:", "limits"), ("Requests:", "requests")] {
        let amounts = entries(&resources[field]);
        if !amounts.is_empty() {
            out.line(level, title);
        }
        for (name, amount) in amounts {
            out.line(level + 1, &format!("{name}:\t{}", quantity(amount)));
        }
    }
}

fn basics(out: &mut Tabs, container: &Value, status: Option<&Value>) {
    out.line(1, &format!("{}:", of(&container["name"])));
    if let Some(status) = status {
        out.line(2, &format!("Container ID:\t{}", of(&status["containerID"])));
    }
    out.line(2, &format!("Image:\t{}", of(&container["image"])));
    if let Some(status) = status {
        out.line(2, &format!("Image ID:\t{}", of(&status["imageID"])));
    }
    let ports = |field: &str| {
        let ports = list(&container["ports"]).iter().map(|port| {
            let name = match of(&port["name"]) {
                "" => String::new(),
                name => format!(" ({name})"),
            };
            format!("{}/{}{name}", port[field].as_i64().unwrap_or_default(), of(&port["protocol"]))
        });
        ports.collect::<Vec<_>>().join(", ")
    };
    for (title, ports) in [("Port", ports("containerPort")), ("Host Port", ports("hostPort"))] {
        match ports.as_str() {
            "" => out.line(2, &format!("{title}:\t<none>")),
            ports if ports.contains(',') => out.line(2, &format!("{title}s:\t{ports}")),
            ports => out.line(2, &format!("{title}:\t{ports}")),
        }
    }
    seccomp(out, 2, &container["securityContext"]);
}

fn state(out: &mut Tabs, title: &str, state: &Value) {
    let (running, waiting, terminated) = (&state["running"], &state["waiting"], &state["terminated"]);
    if running.is_object() {
        out.line(2, &format!("{title}:\tRunning"));
        out.line(3, &format!("Started:\t{}", date(&running["startedAt"])));
    } else if terminated.is_object() {
        out.line(2, &format!("{title}:\tTerminated"));
        for (name, value) in [("Reason", &terminated["reason"]), ("Message", &terminated["message"])] {
            if !of(value).is_empty() {
                out.line(3, &format!("{name}:\t{}", of(value)));
            }
        }
        out.line(3, &format!("Exit Code:\t{}", terminated["exitCode"].as_i64().unwrap_or_default()));
        out.line(3, &format!("Started:\t{}", date(&terminated["startedAt"])));
        out.line(3, &format!("Finished:\t{}", date(&terminated["finishedAt"])));
    } else {
        out.line(2, &format!("{title}:\tWaiting"));
        if !of(&waiting["reason"]).is_empty() {
            out.line(3, &format!("Reason:\t{}", of(&waiting["reason"])));
        }
    }
}

/// `DescribeProbe`.
fn probe(probe: &Value) -> String {
    let number = |field: &str| probe[field].as_i64().unwrap_or_default();
    let beat = format!(
        "delay={}s timeout={}s period={}s #success={} #failure={}",
        number("initialDelaySeconds"),
        number("timeoutSeconds"),
        number("periodSeconds"),
        number("successThreshold"),
        number("failureThreshold")
    );
    let port = |owner: &Value| match &owner["port"] {
        Value::String(name) => name.clone(),
        number => number.as_i64().unwrap_or_default().to_string(),
    };
    let (exec, http, tcp, grpc) = (&probe["exec"], &probe["httpGet"], &probe["tcpSocket"], &probe["grpc"]);
    if exec.is_object() {
        let command: Vec<&str> = list(&exec["command"]).iter().map(of).collect();
        format!("exec [{}] {beat}", command.join(" "))
    } else if http.is_object() {
        let host = match of(&http["host"]) {
            host if host.contains(':') => format!("[{host}]"),
            host => host.to_owned(),
        };
        let path = match of(&http["path"]) {
            "" => String::new(),
            path if path.starts_with('/') => escaped(path),
            path => format!("/{}", escaped(path)),
        };
        format!("http-get {}://{host}:{}{path} {beat}", of(&http["scheme"]).to_ascii_lowercase(), port(http))
    } else if tcp.is_object() {
        format!("tcp-socket {}:{} {beat}", of(&tcp["host"]), port(tcp))
    } else if grpc.is_object() {
        format!("grpc <pod>:{} {} {beat}", port(grpc), of(&grpc["service"]))
    } else {
        format!("unknown {beat}")
    }
}

fn environment(out: &mut Tabs, container: &Value, pod: &Value) {
    let sources = list(&container["envFrom"]);
    if !sources.is_empty() {
        out.line(2, "Environment Variables from:");
    }
    for source in sources {
        let (kind, object) = match source.get("configMapRef") {
            Some(object) => ("ConfigMap", object),
            None => ("Secret", &source["secretRef"]),
        };
        let prefix = match of(&source["prefix"]) {
            "" => String::new(),
            prefix => format!(" with prefix '{prefix}'"),
        };
        let optional = is_optional(object);
        out.line(3, &format!("{}\t{kind}{prefix}\tOptional: {optional}", of(&object["name"])));
    }
    let variables = list(&container["env"]);
    out.line(2, if variables.is_empty() { "Environment:\t<none>" } else { "Environment:" });
    for variable in variables {
        let name = of(&variable["name"]);
        let field = &variable["valueFrom"]["fieldRef"];
        if field.is_object() {
            let (version, path) = (of(&field["apiVersion"]), of(&field["fieldPath"]));
            out.line(3, &format!("{name}:\t{} ({version}:{path})", value_of(pod, path)));
            continue;
        }
        let from = &variable["valueFrom"];
        if from["resourceFieldRef"].is_object() {
            let (resource, value) = resource_of(container, &from["resourceFieldRef"]);
            out.line(3, &format!("{name}:\t{value} ({resource})"));
            continue;
        }
        let keys = [("secretKeyRef", "in secret"), ("configMapKeyRef", "of config map")];
        if let Some((object, what)) = keys.iter().find_map(|(field, what)| Some((from.get(field)?, what))) {
            let (key, of_object, optional) = (of(&object["key"]), of(&object["name"]), is_optional(object));
            out.line(
                3,
                &format!("{name}:\t<set to the key '{key}' {what} '{of_object}'>\tOptional: {optional}"),
            );
            continue;
        }
        for (place, line) in of(&variable["value"]).split('\n').enumerate() {
            let name = if place == 0 { format!("{name}:") } else { String::new() };
            out.line(3, &format!("{name}\t{line}"));
        }
    }
}

/// The name of a request or limit, and the value that kubectl computes: always that of the container itself
/// (`ExtractContainerResourceValue`).
fn resource_of<'a>(container: &Value, field: &'a Value) -> (&'a str, String) {
    let resource = of(&field["resource"]);
    let amount = match resource.split_once('.') {
        Some((list, name)) => quantity(&container["resources"][list][name]),
        None => quantity(&Value::Null),
    };
    let divisor = quantity(&field["divisor"]);
    let is_cpu = resource.ends_with(".cpu");
    let (amount, divisor) = if is_cpu {
        (amount.milli_value(), if divisor.is_zero() { 1000 } else { divisor.milli_value() })
    } else {
        (amount.value(), if divisor.is_zero() { 1 } else { divisor.value() })
    };
    let value = amount.max(0).cast_unsigned().div_ceil(divisor.max(1).cast_unsigned());
    if value == 0 && matches!(resource, "limits.cpu" | "limits.memory") {
        return (resource, "node allocatable".to_owned());
    }
    (resource, value.to_string())
}

/// Returns the value of a field of the pod in a variable. kubectl supports only two fields.
fn value_of<'a>(pod: &'a Value, path: &str) -> &'a str {
    match path {
        "metadata.name" => of(&pod["metadata"]["name"]),
        "metadata.namespace" => of(&pod["metadata"]["namespace"]),
        _ => "",
    }
}

fn mounts(out: &mut Tabs, container: &Value) {
    let mut mounts: Vec<&Value> = list(&container["volumeMounts"]).iter().collect();
    mounts.sort_by_key(|mount| of(&mount["mountPath"]));
    out.line(2, if mounts.is_empty() { "Mounts:\t<none>" } else { "Mounts:" });
    for mount in mounts {
        let mut flags = if mount["readOnly"] == true { "ro" } else { "rw" }.to_owned();
        if !of(&mount["subPath"]).is_empty() {
            flags.push_str(&format!(",path={:?}", of(&mount["subPath"])));
        }
        out.line(3, &format!("{} from {} ({flags})", of(&mount["mountPath"]), of(&mount["name"])));
    }
}

fn conditions(out: &mut Tabs, spec: &Value, status: &Value) {
    let conditions = list(&status["conditions"]);
    let gates = list(&spec["readinessGates"]);
    if !gates.is_empty() {
        out.line(0, "Readiness Gates:");
        out.line(1, "Type\tStatus");
        for gate in gates {
            let given = conditions.iter().find(|condition| condition["type"] == gate["conditionType"]);
            let status = given.map_or("<none>", |given| of(&given["status"]));
            out.line(1, &format!("{} \t{status} ", of(&gate["conditionType"])));
        }
    }
    if !conditions.is_empty() {
        out.line(0, "Conditions:");
        out.line(1, "Type\tStatus");
        for condition in conditions {
            out.line(1, &format!("{} \t{} ", of(&condition["type"]), of(&condition["status"])));
        }
    }
}

fn volumes(out: &mut Tabs, volumes: &Value) {
    let volumes = list(volumes);
    out.line(0, if volumes.is_empty() { "Volumes:\t<none>" } else { "Volumes:" });
    for volume in volumes {
        out.line(1, &format!("{}:", of(&volume["name"])));
        let (host_path, empty_dir) = (&volume["hostPath"], &volume["emptyDir"]);
        let object = |out: &mut Tabs, kind: &str, title: &str, source: &Value, name: &str| {
            out.line(2, &format!("Type:\t{kind} (a volume populated by a {kind})"));
            named(out, title, source, name);
        };
        if host_path.is_object() {
            out.line(2, "Type:\tHostPath (bare host directory volume)");
            out.line(2, &format!("Path:\t{}", of(&host_path["path"])));
            out.line(2, &format!("HostPathType:\t{}", host_path["type"].as_str().unwrap_or("<none>")));
        } else if empty_dir.is_object() {
            out.line(2, "Type:\tEmptyDir (a temporary directory that shares a pod's lifetime)");
            out.line(2, &format!("Medium:\t{}", of(&empty_dir["medium"])));
            let limit = quantity(&empty_dir["sizeLimit"]);
            let limit = if limit.is_zero() { "<unset>".to_owned() } else { limit.to_string() };
            out.line(2, &format!("SizeLimit:\t{limit}"));
        } else if volume["secret"].is_object() {
            object(out, "Secret", "SecretName", &volume["secret"], "secretName");
        } else if volume["configMap"].is_object() {
            object(out, "ConfigMap", "Name", &volume["configMap"], "name");
        } else if volume["downwardAPI"].is_object() {
            out.line(2, "Type:\tDownwardAPI (a volume populated by information about the pod)");
            out.line(2, "Items:");
            for item in list(&volume["downwardAPI"]["items"]) {
                for (reference, field) in [("fieldRef", "fieldPath"), ("resourceFieldRef", "resource")] {
                    if item[reference].is_object() {
                        out.line(3, &format!("{} -> {}", of(&item[reference][field]), of(&item["path"])));
                    }
                }
            }
        } else if volume["projected"].is_object() {
            out.line(2, "Type:\tProjected (a volume that contains injected data from multiple sources)");
            for source in list(&volume["projected"]["sources"]) {
                for (field, title) in [("secret", "SecretName"), ("configMap", "ConfigMapName")] {
                    if source[field].is_object() {
                        named(out, title, &source[field], "name");
                    }
                }
                if source["downwardAPI"].is_object() {
                    out.line(2, "DownwardAPI:\ttrue");
                }
            }
        } else {
            out.line(1, "<unknown>");
        }
    }
}

/// The name of the object of a volume, and whether it may be missing.
fn named(out: &mut Tabs, title: &str, source: &Value, name: &str) {
    out.line(2, &format!("{title}:\t{}", of(&source[name])));
    out.line(2, &format!("Optional:\t{}", is_optional(source)));
}

fn is_optional(source: &Value) -> bool {
    source["optional"].as_bool().unwrap_or_default()
}

fn tolerations(out: &mut Tabs, tolerations: &Value) {
    let mut tolerations: Vec<&Value> = list(tolerations).iter().collect();
    tolerations.sort_by_key(|toleration| of(&toleration["key"]));
    let line = |toleration: &&Value| {
        let of = |field: &str| of(&toleration[field]);
        let mut line = of("key").to_owned();
        if !of("value").is_empty() {
            line.push_str(&format!("={}", of("value")));
        }
        if !of("effect").is_empty() {
            line.push_str(&format!(":{}", of("effect")));
        }
        if of("operator") == "Exists" && of("value").is_empty() {
            let everything = of("key").is_empty() && of("effect").is_empty();
            line.push_str(if everything { "op=Exists" } else { " op=Exists" });
        }
        if let Some(seconds) = toleration["tolerationSeconds"].as_i64() {
            line.push_str(&format!(" for {seconds}s"));
        }
        line
    };
    several(out, "Tolerations", tolerations.iter().map(line));
}

/// `describeTopologySpreadConstraints`.
fn spread(out: &mut Tabs, constraints: &Value) {
    let mut constraints: Vec<&Value> = constraints.as_array().into_iter().flatten().collect();
    constraints.sort_by_key(|constraint| of(&constraint["topologyKey"]));
    let line = |constraint: &&Value| {
        let [key, unless] = ["topologyKey", "whenUnsatisfiable"].map(|field| of(&constraint[field]));
        let selector = &constraint["labelSelector"];
        let by =
            if selector.is_null() { String::new() } else { format!(" for selector {}", formatted(selector)) };
        format!("{key}:{unless} when max skew {} is exceeded{by}", constraint["maxSkew"])
    };
    if !constraints.is_empty() {
        several(out, "Topology Spread Constraints", constraints.iter().map(line));
    }
}

/// `metav1.FormatLabelSelector`.
fn formatted(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut all: Vec<(&str, String)> =
        labels.map(|(key, value)| (key.as_str(), format!("{key}={}", of(value)))).collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = of(&expression["key"]);
        let mut values: Vec<&str> = expression["values"].as_array().into_iter().flatten().map(of).collect();
        values.sort_unstable();
        let values = values.join(",");
        let text = match of(&expression["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        };
        all.push((key, text));
    }
    all.sort_by_key(|(key, _)| *key);
    if all.is_empty() {
        "<none>".to_owned()
    } else {
        all.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
    }
}

/// A path as Go writes it in a URL: a query in it is part of the path.
fn escaped(path: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.~$&+,/:;=@".contains(letter);
    let mut escaped = String::new();
    for byte in path.bytes() {
        match char::from(byte) {
            letter if is_plain(letter) => escaped.push(letter),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}
