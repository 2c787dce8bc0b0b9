//! PersistentVolumes and PersistentVolumeClaims, as `kubectl describe` prints them.

use serde_json::Value;

use super::modes;
use crate::kinds::describe::Tabs;
use crate::kinds::describe::text::{annotations, labels, list, of, several, since};

pub(in crate::kinds) fn describe(out: &mut Tabs, volume: &Value, _: &[Value]) {
    let (metadata, spec) = (&volume["metadata"], &volume["spec"]);
    let claim = match &spec["claimRef"] {
        Value::Null => String::new(),
        claim => format!("{}/{}", of(&claim["namespace"]), of(&claim["name"])),
    };
    out.line(0, &format!("Name:\t{}", of(&metadata["name"])));
    labels(out, "Labels", &metadata["labels"]);
    annotations(out, &metadata["annotations"]);
    finalizers(out, metadata);
    out.line(0, &format!("StorageClass:\t{}", class(volume)));
    status(out, volume);
    out.line(0, &format!("Claim:\t{claim}"));
    out.line(0, &format!("Reclaim Policy:\t{}", of(&spec["persistentVolumeReclaimPolicy"])));
    out.line(0, &format!("Access Modes:\t{}", modes(&spec["accessModes"])));
    mode(out, spec);
    out.line(0, &format!("Capacity:\t{}", amount(&spec["capacity"])));
    node_affinity(out, &spec["nodeAffinity"]["required"]);
    out.line(0, &format!("Message:\t{}", of(&volume["status"]["message"])));
    out.line(0, "Source:");
    if let Value::Object(path) = &spec["hostPath"] {
        let kind = path.get("type").and_then(Value::as_str).unwrap_or("<none>");
        out.line(2, "Type:\tHostPath (bare host directory volume)");
        out.line(2, &format!("Path:\t{}", of(&spec["hostPath"]["path"])));
        out.line(2, &format!("HostPathType:\t{kind}"));
    } else if let Value::Object(_) = &spec["local"] {
        out.line(2, "Type:\tLocalVolume (a persistent volume backed by local storage on a node)");
        out.line(2, &format!("Path:\t{}", of(&spec["local"]["path"])));
    } else {
        out.line(1, "<unknown>");
    }
}

/// Describes a claim with those of these pods that use it.
pub(in crate::kinds) fn describe_claim(out: &mut Tabs, claim: &Value, pods: &[Value]) {
    let (metadata, spec) = (&claim["metadata"], &claim["spec"]);
    let name = of(&metadata["name"]);
    out.line(0, &format!("Name:\t{name}"));
    out.line(0, &format!("Namespace:\t{}", of(&metadata["namespace"])));
    out.line(0, &format!("StorageClass:\t{}", class(claim)));
    status(out, claim);
    out.line(0, &format!("Volume:\t{}", of(&spec["volumeName"])));
    labels(out, "Labels", &metadata["labels"]);
    annotations(out, &metadata["annotations"]);
    finalizers(out, metadata);
    let is_bound = !of(&spec["volumeName"]).is_empty();
    let of_status = |text: fn(&Value) -> String, field: &str| {
        if is_bound { text(&claim["status"][field]) } else { String::new() }
    };
    out.line(0, &format!("Capacity:\t{}", of_status(amount, "capacity")));
    out.line(0, &format!("Access Modes:\t{}", of_status(modes, "accessModes")));
    mode(out, spec);
    let owns = |pod: &Value| {
        list(&metadata["ownerReferences"])
            .iter()
            .any(|owner| owner["kind"] == "Pod" && owner["uid"] == pod["metadata"]["uid"])
    };
    let mut users: Vec<&str> = Vec::new();
    for pod in pods {
        let volumes = list(&pod["spec"]["volumes"]).iter();
        let named = volumes.filter(|volume| volume["persistentVolumeClaim"]["claimName"] == name).count();
        let times = if named == 0 && owns(pod) { 1 } else { named };
        users.extend(std::iter::repeat_n(of(&pod["metadata"]["name"]), times));
    }
    users.sort_unstable();
    several(out, "Used By", users.into_iter().map(str::to_owned));
}

fn finalizers(out: &mut Tabs, metadata: &Value) {
    let finalizers: Vec<&str> = list(&metadata["finalizers"]).iter().map(of).collect();
    out.line(0, &format!("Finalizers:\t[{}]", finalizers.join(" ")));
}

fn status(out: &mut Tabs, object: &Value) {
    let status = match &object["metadata"]["deletionTimestamp"] {
        Value::Null => of(&object["status"]["phase"]).to_owned(),
        deleted => format!("Terminating (lasts {})", since(deleted)),
    };
    out.line(0, &format!("Status:\t{status}"));
}

fn mode(out: &mut Tabs, spec: &Value) {
    if let Some(mode) = spec["volumeMode"].as_str() {
        out.line(0, &format!("VolumeMode:\t{mode}"));
    }
}

/// The storage of a list of resources.
fn amount(resources: &Value) -> String {
    resources["storage"].as_str().unwrap_or("0").to_owned()
}

/// `GetPersistentVolumeClass` and `GetPersistentVolumeClaimClass`.
fn class(object: &Value) -> &str {
    let annotation = &object["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"];
    annotation.as_str().unwrap_or(of(&object["spec"]["storageClassName"]))
}

/// `printVolumeNodeAffinity`.
fn node_affinity(out: &mut Tabs, required: &Value) {
    if required.is_null() {
        return out.line(0, "Node Affinity:\t<none>");
    }
    out.line(0, "Node Affinity:\t");
    let terms = list(&required["nodeSelectorTerms"]);
    out.line(1, if terms.is_empty() { "Required Terms:\t<none>" } else { "Required Terms:\t" });
    for (number, term) in terms.iter().enumerate() {
        let mut title = format!("Term {number}:");
        let requirements = list(&term["matchExpressions"]);
        if requirements.is_empty() {
            out.line(2, &format!("{title}\t<none>"));
        }
        for requirement in requirements {
            let values: Vec<&str> = list(&requirement["values"]).iter().map(of).collect();
            let values = if values.is_empty() { String::new() } else { format!(" [{}]", values.join(", ")) };
            let operator = of(&requirement["operator"]).to_ascii_lowercase();
            out.line(2, &format!("{title}\t{} {operator}{values}", of(&requirement["key"])));
            title.clear();
        }
    }
}
