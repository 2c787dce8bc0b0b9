//! Applies the defaults that a cluster would apply to a Pod, in the same order, so that `get -o yaml` shows
//! the same. Fields that nodlet does not act on are defaulted too.

use nodlet_rootfs::Reference;
use serde_json::{Map, Value, json};

use super::validate::{APPARMOR, of_containers};
use crate::schema::{self, Shape, Type};
use nodlet_core::spec::{MAX_CONTAINERS, Quantity};

/// Defaults of fields that are not set: type, field and value, as JSON or as a string that is no JSON.
const IF_UNSET: [(&str, &str, &str); 16] = [
    ("ConfigMapVolumeSource", "defaultMode", "420"),
    ("Container", "resources", "{}"),
    ("DownwardAPIVolumeSource", "defaultMode", "420"),
    ("EphemeralContainer", "resources", "{}"),
    ("GRPCAction", "service", ""),
    ("HTTPHeader", "value", ""),
    ("HostPathVolumeSource", "type", ""),
    ("PodSpec", "enableServiceLinks", "true"),
    ("PodSpec", "securityContext", "{}"),
    ("PodSpec", "terminationGracePeriodSeconds", "30"),
    ("PreferredSchedulingTerm", "preference", "{}"),
    ("ProjectedVolumeSource", "defaultMode", "420"),
    ("ResourceFieldSelector", "divisor", "\"0\""),
    ("SecretVolumeSource", "defaultMode", "420"),
    ("SleepAction", "seconds", "0"),
    ("Sysctl", "value", ""),
];

/// Defaults of fields that are not set or have their type's zero, which Kubernetes cannot distinguish.
const IF_ZERO: [(&str, &str, &str); 15] = [
    ("Container", "terminationMessagePath", "/dev/termination-log"),
    ("Container", "terminationMessagePolicy", "File"),
    ("ContainerPort", "protocol", "TCP"),
    ("EphemeralContainer", "terminationMessagePath", "/dev/termination-log"),
    ("EphemeralContainer", "terminationMessagePolicy", "File"),
    ("HTTPGetAction", "path", "/"),
    ("HTTPGetAction", "scheme", "HTTP"),
    ("ObjectFieldSelector", "apiVersion", "v1"),
    ("PodSpec", "dnsPolicy", "ClusterFirst"),
    ("PodSpec", "restartPolicy", "Always"),
    ("PodSpec", "schedulerName", "default-scheduler"),
    ("Probe", "failureThreshold", "3"),
    ("Probe", "periodSeconds", "10"),
    ("Probe", "successThreshold", "1"),
    ("Probe", "timeoutSeconds", "1"),
];

/// Sets the defaults of the tables in an object of this type and in the objects below it, and writes single quantities
/// as Kubernetes does.
fn from_tables(map: &mut Map<String, Value>, owner: &Type) {
    let is_unset = |(name, field, _): &&(&str, &str, &str)| *name == owner.name && !map.contains_key(*field);
    let is_zero = |(name, field, _): &&(&str, &str, &str)| *name == owner.name && is_zero(map.get(*field));
    let missing = IF_UNSET.iter().filter(is_unset).chain(IF_ZERO.iter().filter(is_zero));
    for (_, field, value) in missing.copied().collect::<Vec<_>>() {
        map.insert(field.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into()));
    }
    for (name, value) in map {
        let Some(field) = owner.field(name) else { continue };
        if (field.shape, field.value) == (Shape::One, schema::Value::Quantity) {
            canonical(Some(value), false);
        }
        // No pod has more containers, and each gets a dozen fields.
        let most = if CONTAINERS.contains(&name.as_str()) { MAX_CONTAINERS + 1 } else { usize::MAX };
        match (field.object(), value) {
            (Some(of), Value::Object(map)) if field.shape == Shape::One => from_tables(map, of),
            (Some(of), Value::Array(list)) => {
                let elements = list.iter_mut().take(most).filter_map(Value::as_object_mut);
                elements.for_each(|map| from_tables(map, of));
            }
            _ => {}
        }
    }
}

/// Applies all defaults. The object must already match the schema.
pub(super) fn apply(pod: &mut Value) {
    app_armor_fields(pod);
    let (Some(spec), Some(of)) = (child(pod, "spec"), schema::find("PodSpec")) else { return };
    from_tables(spec, of);
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
        // Old clients could write it, and Kubernetes reads it as one second.
        spec.insert("terminationGracePeriodSeconds".to_owned(), json!(1));
    }
    // The old name of the field is kept equal to the new one.
    if let Some(name) = ["serviceAccountName", "serviceAccount"].iter().find_map(|name| text(spec, name)) {
        spec.insert("serviceAccountName".to_owned(), json!(name));
        spec.insert("serviceAccount".to_owned(), json!(name));
    }
    // Behind a feature gate that is off by default (`DropDisabledPodFields`).
    spec.remove("schedulingGroup");
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or(false);

    for volume in children(spec, "volumes") {
        self::volume(volume);
    }
    for list in CONTAINERS {
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
    if let Some(Value::Object(image)) = volume.get_mut("image") {
        let reference = text(image, "reference").unwrap_or_default();
        default(image, "pullPolicy", || json!(pull_policy(&reference)));
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
    }
}

fn container(container: &mut Map<String, Value>, host_network: bool) {
    let image = text(container, "image").unwrap_or_default();
    default(container, "imagePullPolicy", || json!(pull_policy(&image)));
    for port in children(container, "ports").filter(|_| host_network) {
        let number = port.get("containerPort").cloned().unwrap_or_else(|| json!(0));
        default(port, "hostPort", || number);
    }
    if let Some(Value::Object(resources)) = container.get_mut("resources") {
        self::resources(resources);
    }
}

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
    if is_zero(map.get(name)) {
        map.insert(name.to_owned(), value());
    }
}

fn is_zero(value: Option<&Value>) -> bool {
    match value {
        None => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) => false,
    }
}
