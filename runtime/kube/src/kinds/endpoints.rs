//! Endpoints (`v1`), the older form of EndpointSlices, as `kubectl get` and `kubectl describe` print them. The agent
//! makes them for clients that read them; clients make EndpointSlices. Pure.

use serde_json::Value;

use super::cells::{array, text};
use super::describe::Tabs;
use super::describe::text::{head, list, of as text_of};
use super::service::{host_port, shortened};
use super::strategy::{AGE, NAME, Strategy, of};
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy::new(&[NAME, of("Endpoints", "", endpoints), AGE], describe);

/// The most endpoints of a cell.
const MAX_SHOWN: usize = 3;

/// `formatEndpoints`
fn endpoints(object: &Value, _: &str, _: Timestamp) -> Value {
    if list(&object["subsets"]).is_empty() {
        return "<none>".into();
    }
    let mut found = Vec::new();
    for subset in list(&object["subsets"]) {
        let addresses = || array(&subset["addresses"]).map(|address| text(&address["ip"]));
        if list(&subset["ports"]).is_empty() {
            found.extend(addresses().map(str::to_owned));
        }
        for port in list(&subset["ports"]) {
            found.extend(addresses().map(|address| host_port(address, &port["port"])));
        }
    }
    shortened(found, MAX_SHOWN).into()
}

/// `describeEndpoints`
fn describe(out: &mut Tabs, object: &Value, _: &[Value]) {
    head(out, object);
    out.line(0, "Subsets:");
    for subset in list(&object["subsets"]) {
        for (title, field) in [("Addresses", "addresses"), ("NotReadyAddresses", "notReadyAddresses")] {
            let all: Vec<&str> = list(&subset[field]).iter().map(|address| text_of(&address["ip"])).collect();
            let all = all.join(",");
            out.line(1, &format!("{title}:\t{}", if all.is_empty() { "<none>" } else { &all }));
        }
        if !list(&subset["ports"]).is_empty() {
            out.line(1, "Ports:");
            out.line(2, "Name\tPort\tProtocol");
            out.line(2, "----\t----\t--------");
            for port in list(&subset["ports"]) {
                let name = if text_of(&port["name"]).is_empty() { "<unset>" } else { text_of(&port["name"]) };
                out.line(2, &format!("{name}\t{}\t{}", port["port"], text_of(&port["protocol"])));
            }
        }
        out.line(0, "");
    }
}
