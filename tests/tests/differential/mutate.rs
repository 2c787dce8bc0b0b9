//! [`mutate`]: random changes of an object, made from Kubernetes' own table of types and fields, so that no field
//! is left out.

use nodlet_kube::schema::{Field, Shape, Type, Value as Kind};
use nodlet_tests::Seed;
use serde_json::{Map, Value, json};

/// Strings of all kinds that fields have: names, enumerations, paths, addresses, quantities and what is none of them.
const STRINGS: &[&str] = &[
    "",
    "a",
    "A",
    "a-b",
    "a.b",
    "a_b",
    "-a",
    "a-",
    "a b",
    "1",
    "1a",
    "é",
    "a/b",
    "/",
    "/a",
    "/a/../b",
    "../a",
    "..",
    ".",
    "..a",
    "a/../b",
    "a:b",
    "/a:b",
    "$(A)",
    "example.com/a",
    "kubernetes.io/a",
    "example.com/a_b",
    "a/b/c",
    "Always",
    "Never",
    "OnFailure",
    "IfNotPresent",
    "ClusterFirst",
    "ClusterFirstWithHostNet",
    "Default",
    "None",
    "TCP",
    "UDP",
    "SCTP",
    "tcp",
    "HTTP",
    "HTTPS",
    "In",
    "NotIn",
    "Exists",
    "DoesNotExist",
    "Gt",
    "Lt",
    "Equal",
    "NoSchedule",
    "PreferNoSchedule",
    "NoExecute",
    "File",
    "FallbackToLogsOnError",
    "Memory",
    "HugePages",
    "HugePages-2Mi",
    "RuntimeDefault",
    "Localhost",
    "Unconfined",
    "Bidirectional",
    "HostToContainer",
    "linux",
    "windows",
    "Directory",
    "FileOrCreate",
    "Socket",
    "BlockDevice",
    "requests.cpu",
    "limits.memory",
    "metadata.name",
    "status.podIP",
    "spec.nodeName",
    "metadata.labels['a']",
    "metadata.labels",
    "metadata.annotations['a/b']",
    "status.hostIPs",
    "100m",
    "1Gi",
    "-1",
    "1.5",
    "0",
    "0.5",
    "1e3",
    "5.",
    "+1",
    "0644",
    "1.0000001",
    "9223372036854775808",
    "10.0.0.1",
    "::1",
    "300.1.1.1",
    "10.0.0.1/8",
    "2001:db8::1",
    "ALL",
    "NET_ADMIN",
    "CAP_NET_ADMIN",
    "net.ipv4.ip_unprivileged_port_start",
    "kernel.shm_rmid_forced",
    "kernel/shm_rmid_forced",
    "vm.x",
    "OrderedReady",
    "Merge",
    "Strict",
    "OnRootMismatch",
    "NotRequired",
    "RestartContainer",
    "Restart",
    "RestartAllContainers",
    "Unmasked",
    "ReadWriteOnce",
    "ReadWriteOncePod",
    "Block",
    "Filesystem",
    "Recursive",
    "Enabled",
    "Disabled",
    "IfPossible",
    "SIGTERM",
    "SIGUSR1",
    "SIGRTMIN+1",
    "nodlet",
    "system-node-critical",
    "DoNotSchedule",
    "ScheduleAnyway",
    "Honor",
    "Ignore",
    "kubernetes.io/hostname",
    "PreemptLowerPriority",
    "demo",
    "demo:latest",
    "demo@sha256:0",
    "UPPER:a",
    "default",
    "data",
    "app",
    "other",
    "2026-01-01T00:00:00Z",
    "yes",
    "true",
];
/// Names in maps, above all of resources.
const KEYS: &[&str] = &[
    "a",
    "A",
    "a/b",
    "example.com/a",
    "a b",
    "",
    "cpu",
    "memory",
    "ephemeral-storage",
    "hugepages-2Mi",
    "hugepages-1Ki",
    "storage",
    "pods",
    "example.com/device",
    "requests.cpu",
    "kubernetes.io/config.mirror",
    "nodlet.dev/serial",
    "app",
    "controller.kubernetes.io/pod-deletion-cost",
    "seccomp.security.alpha.kubernetes.io/pod",
    "container.apparmor.security.beta.kubernetes.io/app",
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
];
const NUMBERS: &[i64] = &[
    -2_147_483_649,
    -1,
    0,
    1,
    2,
    3,
    5,
    7,
    80,
    100,
    101,
    254,
    255,
    256,
    420,
    511,
    512,
    1000,
    1001,
    3600,
    32767,
    65535,
    65536,
    86_400,
    86_401,
    1_000_000_000,
    2_147_483_647,
    2_147_483_648,
    9_223_372_036_854_775_807,
];

/// Where an object has a value: one step per level.
#[derive(Clone, Debug)]
enum Step {
    Name(String),
    Index(usize),
}

/// Changes an object of this type at one or two random places. Returns what was done.
pub(crate) fn mutate(object: &mut Value, of: &'static Type, seed: &mut Seed) -> String {
    let changes = 1 + usize::from(seed.number().is_multiple_of(4));
    let done: Vec<String> = (0..changes).map(|_| change(object, of, seed)).collect();
    done.join("; ")
}

fn change(object: &mut Value, of: &'static Type, seed: &mut Seed) -> String {
    match seed.number() % 8 {
        0 => remove(object, of, seed),
        1 => repeat(object, of, seed),
        2..=4 => replace(object, of, seed),
        _ => add(object, of, seed),
    }
}

/// All values of an object, with the fields that they are of.
fn places(object: &Value, of: &'static Type) -> Vec<(Vec<Step>, Option<&'static Field>)> {
    let mut found = Vec::new();
    let mut path = Vec::new();
    walk(object, Some(of), &mut path, &mut found);
    found
}

fn walk(
    value: &Value,
    of: Option<&'static Type>,
    path: &mut Vec<Step>,
    found: &mut Vec<(Vec<Step>, Option<&'static Field>)>,
) {
    for (name, inside) in value.as_object().into_iter().flatten() {
        let field = of.and_then(|of| of.field(name));
        path.push(Step::Name(name.clone()));
        found.push((path.clone(), field));
        let object = field.and_then(Field::object);
        match inside {
            Value::Array(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    path.push(Step::Index(index));
                    found.push((path.clone(), field));
                    walk(element, object, path, found);
                    path.pop();
                }
            }
            Value::Object(entries) if field.is_some_and(|field| field.shape == Shape::Map) => {
                for (key, entry) in entries {
                    path.push(Step::Name(key.clone()));
                    found.push((path.clone(), field));
                    walk(entry, object, path, found);
                    path.pop();
                }
            }
            _ => walk(inside, object, path, found),
        }
        path.pop();
    }
}

fn at<'a>(object: &'a mut Value, path: &[Step]) -> &'a mut Value {
    path.iter().fold(object, |value, step| match step {
        Step::Name(name) => &mut value[name.as_str()],
        Step::Index(index) => &mut value[*index],
    })
}

fn written(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Name(name) => text = format!("{text}.{name}"),
            Step::Index(index) => text = format!("{text}[{index}]"),
        }
    }
    text
}

fn remove(object: &mut Value, of: &'static Type, seed: &mut Seed) -> String {
    let all = places(object, of);
    let (path, _) = seed.choose(&all);
    let (last, parent) = path.split_last().expect("no place is the whole");
    match (last, at(object, parent)) {
        (Step::Name(name), Value::Object(fields)) => drop(fields.remove(name)),
        (Step::Index(index), Value::Array(elements)) => drop(elements.remove(*index)),
        _ => {}
    }
    format!("{} removed", written(path))
}

/// Repeats an element of a list, at its end.
fn repeat(object: &mut Value, of: &'static Type, seed: &mut Seed) -> String {
    let all = places(object, of);
    let lists: Vec<_> = all
        .iter()
        .filter(|(path, _)| at(object, path).as_array().is_some_and(|list| !list.is_empty()))
        .collect();
    if lists.is_empty() {
        return "nothing".to_owned();
    }
    let (path, _) = seed.choose(&lists);
    let list = at(object, path).as_array_mut().expect("a list was chosen");
    let element = seed.choose(list).clone();
    list.push(element);
    format!("{} has an element twice", written(path))
}

/// Replaces a value by another of the same field, or now and then by one of a wrong type.
fn replace(object: &mut Value, of: &'static Type, seed: &mut Seed) -> String {
    let all = places(object, of);
    let (path, field) = seed.choose(&all);
    let wrong = seed.number().is_multiple_of(16);
    let value = match field {
        Some(field) if !wrong => {
            let one = matches!(path.last(), Some(Step::Index(_))) || in_map(path, field);
            if one { element(field, seed, 2) } else { whole(field, seed, 2) }
        }
        _ => seed
            .choose(&[json!(1), json!("a"), json!(true), json!([]), json!({}), json!(1.5), json!(null)])
            .clone(),
    };
    let text = format!("{} = {value}", written(path));
    *at(object, path) = value;
    text
}

fn in_map(path: &[Step], field: &Field) -> bool {
    field.shape == Shape::Map && matches!(path.last(), Some(Step::Name(name)) if name != field.name)
}

/// Adds a field that its object does not have yet, or an element to a list or a map.
fn add(object: &mut Value, of: &'static Type, seed: &mut Seed) -> String {
    let mut owners: Vec<(Vec<Step>, &'static Type)> = vec![(Vec::new(), of)];
    for (path, field) in places(object, of) {
        let is_object = at(object, &path).is_object();
        let whole_map = field.is_some_and(|field| field.shape == Shape::Map && !in_map(&path, field));
        if let Some(inside) = field.and_then(Field::object).filter(|_| is_object && !whole_map) {
            owners.push((path, inside));
        }
    }
    let (path, owner) = seed.choose(&owners);
    let field = seed.choose(owner.fields);
    let value = whole(field, seed, 3);
    let owner = at(object, path);
    let text = format!("{}.{} := {value}", written(path), field.name);
    match (&mut owner[field.name], value) {
        (Value::Array(present), Value::Array(more)) => present.extend(more),
        (Value::Object(present), Value::Object(more)) => present.extend(more),
        (place, value) => *place = value,
    }
    text
}

/// A value for a whole field.
fn whole(field: &Field, seed: &mut Seed, depth: u8) -> Value {
    match field.shape {
        Shape::One => element(field, seed, depth),
        Shape::List(_) => {
            let count = 1 + seed.number() % 2;
            (0..count).map(|_| element(field, seed, depth)).collect()
        }
        Shape::Map => {
            let key = (*seed.choose(KEYS)).to_owned();
            Value::Object(Map::from_iter([(key, element(field, seed, depth))]))
        }
    }
}

fn element(field: &Field, seed: &mut Seed, depth: u8) -> Value {
    match field.value {
        Kind::String | Kind::Time => string(seed),
        Kind::Bool => json!(seed.number().is_multiple_of(2)),
        Kind::Int32 | Kind::Int64 => json!(seed.choose(NUMBERS)),
        Kind::Quantity | Kind::IntOrString if seed.number().is_multiple_of(2) => json!(seed.choose(NUMBERS)),
        Kind::Quantity => json!(seed.choose(&[
            "1", "2", "100m", "1Gi", "64Mi", "-1", "0", "1.5", "0.1m", "1e3", "5.", "+1", ".5", "1Ki", "1E",
            "1n", "a", ""
        ])),
        Kind::IntOrString => string(seed),
        Kind::Any => json!({}),
        Kind::Object(_) if depth == 0 => json!({}),
        Kind::Object(_) => {
            let of = field.object().expect("an object has a type");
            let mut made = Map::new();
            let some = 1 + seed.number() % 3;
            for _ in 0..some {
                let inside = seed.choose(of.fields);
                made.insert(inside.name.to_owned(), whole(inside, seed, depth - 1));
            }
            Value::Object(made)
        }
    }
}

fn string(seed: &mut Seed) -> Value {
    match seed.number() % 24 {
        0 => json!("a".repeat(usize::try_from(62 + seed.number() % 3).expect("it is small"))),
        1 => json!("a".repeat(usize::try_from(252 + seed.number() % 3).expect("it is small"))),
        _ => json!(seed.choose(STRINGS)),
    }
}
