//! [`differing`]: requests whose answers were once not those of a kube-apiserver: options, selectors and parts of lists,
//! forms of answers, fields that occur twice, warnings and dry runs.

use std::path::Path;

use nodlet_tests::request_for_headers;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

/// A request, with what its answer is compared in.
struct Case {
    method: &'static str,
    path: String,
    kind: &'static str,
    accept: &'static str,
    body: String,
}

impl Case {
    fn get(path: impl Into<String>) -> Self {
        Case { method: "GET", path: path.into(), kind: JSON, accept: JSON, body: String::new() }
    }

    fn with(method: &'static str, path: impl Into<String>, body: impl Into<String>) -> Self {
        let kind = if method == "PATCH" { MERGE } else { JSON };
        Case { method, path: path.into(), kind, accept: JSON, body: body.into() }
    }
}

/// Sends all requests to both servers. Returns a text for each whose answers differ.
pub(crate) fn differing(real: &Path, ours: &Path) -> Vec<String> {
    for socket in [real, ours] {
        for name in ["a", "b", "c"] {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name, "n": "4"}},
                "spec": {"containers": [{"name": "app", "image": "demo"}]},
            });
            let made = Case::with("POST", PODS, pod.to_string());
            assert_eq!(send(socket, &made)["code"], 201, "{name}");
        }
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}, "data": {"a": "b"}});
        let made = Case::with("POST", "/api/v1/namespaces/default/configmaps", map.to_string());
        assert_eq!(send(socket, &made)["code"], 201, "a ConfigMap");
    }
    let mut cases = lists();
    cases.extend(selectors());
    cases.extend(forms());
    cases.extend(options());
    cases.extend(objects());
    let differing = cases.iter().filter_map(|case| {
        let [real, ours] = [real, ours].map(|socket| send(socket, case));
        let is_equal = agrees(&real, &ours);
        (!is_equal).then(|| format!("{} {} {}\n  K: {real}\n  n: {ours}", case.method, case.path, case.body))
    });
    differing.collect()
}

/// Whether two answers agree: nodlet's message and its warnings may go on where those of Kubernetes end.
fn agrees(real: &Value, ours: &Value) -> bool {
    let text = |answer: &Value| answer["message"].as_str().unwrap_or_default().to_owned();
    let warnings = |answer: &Value| answer["warnings"].as_array().cloned().unwrap_or_default();
    let rest = |answer: &Value| {
        let mut answer = answer.clone();
        (answer["message"], answer["warnings"]) = (Value::Null, Value::Null);
        answer
    };
    let mut own = warnings(ours).into_iter();
    rest(real) == rest(ours)
        && text(ours).starts_with(&text(real))
        && warnings(real).iter().all(|warning| own.any(|one| one == *warning))
}

/// The parts of an answer that both servers can have in common.
fn send(socket: &Path, case: &Case) -> Value {
    let (code, headers, body) =
        request_for_headers(socket, case.method, &case.path, (case.kind, case.accept), &case.body)
            .expect("the API answers");
    let warnings: Vec<&str> = headers.lines().filter_map(|line| line.strip_prefix("warning: ")).collect();
    let message = body["message"].as_str().unwrap_or_default();
    // The version that a server has reached, what a media type it serves, and what it is written in.
    let message = message.split(", current: ").next().unwrap_or_default();
    let message = message.split("application/json").next().unwrap_or_default();
    let message = message.split(" (*core.").next().unwrap_or_default();
    let message = message.split(" (Pod)").next().unwrap_or_default();
    let message = message.split(": illegal base64").next().unwrap_or_default();
    // Kubernetes gives some causes twice, since it checks metadata twice.
    let mut causes: Vec<Value> = body["details"]["causes"].as_array().cloned().unwrap_or_default();
    causes.dedup();
    let names: Option<Vec<_>> =
        body["items"].as_array().map(|all| all.iter().map(|one| one["metadata"]["name"].clone()).collect());
    let metadata = &body["metadata"];
    json!({
        "code": code, "message": message, "warnings": warnings, "names": names,
        "kind": body["kind"], "reason": body["reason"], "version": body["apiVersion"],
        "more": [metadata["remainingItemCount"], metadata["continue"].is_string()],
        "set": [metadata["generation"], metadata["uid"].is_string(), metadata["resourceVersion"].is_string()],
        "causes": causes, "of": [body["details"]["kind"], body["details"]["group"]],
        "amounts": [body["spec"]["limits"], body["spec"]["capacity"]],
        "phase": body["status"]["phase"], "data": body["data"],
    })
}

fn lists() -> Vec<Case> {
    let queries = "limit=1 limit=2 limit=3 limit=-1 limit=x limit=1&resourceVersion=0 limit=1&labelSelector=app \
                   timeoutSeconds=x resourceVersion=abc resourceVersion=-1 \
                   resourceVersion=99999999999999999999999 resourceVersion=18446744073709551615 \
                   resourceVersion=0&resourceVersionMatch=Exact resourceVersionMatch=Exact \
                   resourceVersionMatch=Bad resourceVersion=0&resourceVersionMatch=NotOlderThan \
                   sendInitialEvents=true continue=%21 continue=x&resourceVersion=1 \
                   continue=x&resourceVersionMatch=Exact watch=1&resourceVersion=abc \
                   watch=1&resourceVersionMatch=Exact watch=1&sendInitialEvents=true \
                   watch=1&sendInitialEvents=true&resourceVersionMatch=Exact watch=1&timeoutSeconds=x \
                   watch=1&continue=x";
    let one = ["resourceVersion=abc", "resourceVersion=18446744073709551615", "resourceVersion=0"];
    let lists = queries.split(' ').map(|query| Case::get(format!("{PODS}?{query}")));
    lists.chain(one.iter().map(|query| Case::get(format!("{PODS}/a?{query}")))).collect()
}

fn selectors() -> Vec<Case> {
    let labels = "=web|app in web|app in (web|app=web tier|a b|!|!!a|a=b=c|a==b|a!=b|in|notin (a)|app in ()|\
                  app notin ()|app in (a,,b)|app in (,a)|app in (a,)|n>3|n<4|n>x|a<-1|a>|app=a,|app,,b|,app|\
                  a/b/c=d|-a=b|a=-b|é=a|a= b|(a)|a=(b)|/a=b|a/=b|app ~ b|a\tin (b)|a=b!|==a|a===b|a!b|!a=b|\
                  !a in (b)|\"a\"=b|*|app in (a b)|app in (a,b) c|app in (a)(b)|app in (!)|in in (in)|exists a|a;b";
    let fields = "metadata.name|metadata.name=|metadata.name==a|metadata.name!=a|spec.foo=1|=a|metadata.name=a,,|\
                  ,|metadata.name=a=b|metadata.name=a\\,b|metadata.name=a\\b|metadata.name=a\\|\
                  spec.hostNetwork=true|spec.hostNetwork=false|metadata.name = a|!metadata.name|\
                  metadata.name=a , metadata.namespace=default";
    let of = |kind: &str, text: &str| Case::get(format!("{PODS}?{kind}Selector={}", encoded(text)));
    let labels = labels.split('|').map(|text| of("label", text));
    let maps = Case::get("/api/v1/configmaps?fieldSelector=a%3Db");
    let both = Case::get(format!("{PODS}?fieldSelector=a%3Db&labelSelector=%3D&resourceVersionMatch=Exact"));
    labels.chain(fields.split('|').map(|text| of("field", text))).chain([maps, both]).collect()
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn forms() -> Vec<Case> {
    let accepts = [
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        "application/json;as=Table;g=meta.k8s.io;v=v1",
        "application/json;as=Table;g=meta.k8s.io;v=v2",
        "application/json;as=Table;g=x;v=v1",
        "application/json;as=Foo;g=meta.k8s.io;v=v1",
        "application/json;as=Foo;g=meta.k8s.io;v=v1,application/json",
        "text/html",
        "text/html,*/*",
        "*/*",
        "application/*",
        "application/xml",
        "APPLICATION/JSON",
        "application/json;charset=utf-8",
    ];
    let mut cases = Vec::new();
    for accept in accepts {
        for path in ["/a", "?limit=0"] {
            cases.push(Case { accept, ..Case::get(format!("{PODS}{path}")) });
        }
        let patch = r#"{"metadata":{"labels":{"x":"y"}}}"#;
        cases.push(Case { accept, ..Case::with("PATCH", format!("{PODS}/a?dryRun=All"), patch) });
    }
    cases
}

fn options() -> Vec<Case> {
    let long = format!("fieldManager={}", "m".repeat(129));
    let queries = [
        &long,
        "fieldManager=%07",
        "fieldManager=a%00b",
        "fieldManager=%C3%A9",
        "dryRun=Bad",
        "dryRun=All&dryRun=Bad",
        "dryRun=",
        "fieldValidation=Bad",
        &format!("{long}&dryRun=Bad&fieldValidation=Bad"),
        "force=true",
    ];
    let mut cases = Vec::new();
    for query in queries {
        let query = if query.contains("dryRun") { query.to_owned() } else { format!("{query}&dryRun=All") };
        cases.push(Case::with("POST", format!("{PODS}?{query}"), pod("new", &json!({}))));
        cases.push(Case::with("PATCH", format!("{PODS}/a?{query}"), r#"{"metadata":{"labels":{"x":"y"}}}"#));
    }
    for query in [
        "propagationPolicy=Bad",
        "propagationPolicy=",
        "gracePeriodSeconds=x",
        "gracePeriodSeconds=",
        "dryRun=Bad",
        "orphanDependents=true&propagationPolicy=Orphan",
    ] {
        cases.push(Case::with("DELETE", format!("{PODS}/a?dryRun=All&{query}"), ""));
    }
    cases.push(Case::with("DELETE", "/api/v1/namespaces/default/configmaps/map?dryRun=All", ""));
    cases
}

fn pod(name: &str, spec: &Value) -> String {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "app", "image": "demo"}]},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    pod.to_string()
}

fn objects() -> Vec<Case> {
    let container = |fields: Value| {
        let mut container = json!({"name": "app", "image": "demo"});
        for (field, value) in fields.as_object().into_iter().flatten() {
            container[field] = value.clone();
        }
        json!({"containers": [container]})
    };
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let long = format!("{}.b", "a".repeat(60));
    let warned = [
        ("a.b", json!({})),
        (&long, json!({})),
        ("neg", json!({"terminationGracePeriodSeconds": -1})),
        (
            "env",
            container(json!({"env": [{"name": "A", "value": "a"}, {"name": "A", "value": "b"},
            {"name": "A", "value": "$(A)"}, {"name": "A", "value": "$(A)x"}]})),
        ),
        (
            "ports",
            container(json!({"ports": [{"name": "a", "containerPort": 80}, {"containerPort": 80},
            {"containerPort": 80, "hostPort": 8080}, {"containerPort": 81, "hostPort": 81},
            {"containerPort": 81, "hostPort": 81, "hostIP": "10.0.0.1"}, {"containerPort": 82, "hostIP": "10.0.0.1"}]})),
        ),
        (
            "names",
            json!({"initContainers": [{"name": "i", "image": "demo", "restartPolicy": "Always",
            "ports": [{"name": "a", "containerPort": 1}]}],
            "containers": [{"name": "app", "image": "demo", "ports": [{"name": "a", "containerPort": 2}]}]}),
        ),
        (
            "spread",
            json!({"topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "beta.kubernetes.io/os", "whenUnsatisfiable": "ScheduleAnyway"}]}),
        ),
        (
            "affinity",
            json!({"affinity": {
            "nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "beta.kubernetes.io/arch", "operator": "Exists"}]}]},
                preferred: [{"weight": 1, "preference": {"matchExpressions": [
                    {"key": "a", "operator": "In", "values": ["-a"]}]}}]},
            "podAffinity": {required: [{"topologyKey": "a"}]},
            "podAntiAffinity": {preferred: [{"weight": 1, "podAffinityTerm": {"topologyKey": "a"}}]}}}),
        ),
        ("selector", json!({"nodeSelector": {"node-role.kubernetes.io/master": ""}})),
        (
            "files",
            json!({"volumes": [
            {"name": "a", "configMap": {"name": "c", "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "x/y"}]}},
            {"name": "b", "secret": {"secretName": "s", "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "x/y/"}]}},
            {"name": "c", "projected": {"sources": [
                {"secret": {"name": "s", "items": [{"key": "a", "path": "x"}]}},
                {"downwardAPI": {"items": [{"path": "x/y", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}]}),
        ),
        (
            "addresses",
            json!({"hostAliases": [{"ip": "2001:DB8::1", "hostnames": ["a"]},
            {"ip": "2001:DB8::1", "hostnames": ["b"]}], "dnsConfig": {"nameservers": ["::0:1"]},
            "imagePullSecrets": [{"name": "a"}, {"name": "a"}, {}]}),
        ),
        ("bytes", container(json!({"resources": {"limits": {"memory": ".5"}}}))),
    ];
    let mut cases: Vec<Case> = warned
        .iter()
        .map(|(name, spec)| Case::with("POST", format!("{PODS}?dryRun=All"), pod(name, spec)))
        .collect();
    let twice = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"d","labels":{"a":"b","a":"c"}},"spec":{"containers":[{"name":"a","image":"b","image":"c"}],"hostNetwork":true,"hostNetwork":false,"foo":1}}"#;
    let map =
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"d"},"data":{"a":"b","a":"c"},"foo":1}"#;
    for validation in ["Strict", "Warn", "Ignore"] {
        let query = format!("dryRun=All&fieldValidation={validation}");
        cases.push(Case::with("POST", format!("{PODS}?{query}"), twice));
        cases.push(Case::with("POST", format!("/api/v1/namespaces/default/configmaps?{query}"), map));
    }
    for amount in ["+1", "5.", "0644", "1.0", ".5", "1e3", "0.1m", "1Ki", "1000m", "1024Mi"] {
        let range = json!({"kind": "LimitRange", "apiVersion": "v1", "metadata": {"name": "r"},
            "spec": {"limits": [{"type": "Container", "max": {"cpu": amount}}]}});
        let path = "/api/v1/namespaces/default/limitranges?dryRun=All";
        cases.push(Case::with("POST", path, range.to_string()));
        let volume = json!({"kind": "PersistentVolume", "apiVersion": "v1", "metadata": {"name": "v"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": amount}, "hostPath": {"path": "/tmp"}}});
        cases.push(Case::with("POST", "/api/v1/persistentvolumes?dryRun=All", volume.to_string()));
    }
    let map = "/api/v1/namespaces/default/configmaps/map?dryRun=All";
    cases.push(Case::with("PATCH", map, r#"{"data":{"a":"c"}}"#));
    cases.push(Case::with(
        "PUT",
        map,
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"map"},"data":{"z":"c"}}"#,
    ));
    cases.push(Case::with(
        "PUT",
        map,
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{},"data":{"z":"c"}}"#,
    ));
    let class =
        r#"{"kind":"PriorityClass","apiVersion":"scheduling.k8s.io/v1","metadata":{"name":"c"},"value":5}"#;
    cases.push(Case::with("POST", "/apis/scheduling.k8s.io/v1/priorityclasses?dryRun=All", class));
    for metadata in [
        json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}),
        json!({"generateName": "x-"}),
        json!({"generateName": "X_"}),
        json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        json!({"deletionGracePeriodSeconds": 5}),
        json!({"name": null}),
        json!({"uid": "z"}),
        json!({"resourceVersion": "x"}),
        json!({"creationTimestamp": null}),
        json!({"annotations": {"controller.kubernetes.io/pod-deletion-cost": "+5"}}),
        json!({"annotations": {"controller.kubernetes.io/pod-deletion-cost": "x"}}),
    ] {
        let patch = json!({"metadata": metadata}).to_string();
        cases.push(Case::with("PATCH", format!("{PODS}/a?dryRun=All"), patch));
    }
    cases
}
