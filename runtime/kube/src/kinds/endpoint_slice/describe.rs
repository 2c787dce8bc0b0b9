//! EndpointSlices, as `kubectl describe endpointslice` prints them.

use serde_json::Value;

use crate::kinds::describe::Tabs;
use crate::kinds::describe::text::{head, list, of};

pub(super) fn describe(out: &mut Tabs, slice: &Value, _: &[Value]) {
    head(out, slice);
    out.line(0, &format!("AddressType:\t{}", of(&slice["addressType"])));
    if list(&slice["ports"]).is_empty() {
        out.line(0, "Ports: <unset>");
    } else {
        out.line(0, "Ports:");
        out.line(1, "Name\tPort\tProtocol");
        out.line(1, "----\t----\t--------");
        for port in list(&slice["ports"]) {
            let number = if port["port"].is_null() { unset("").to_owned() } else { port["port"].to_string() };
            out.line(1, &format!("{}\t{number}\t{}", unset(of(&port["name"])), of(&port["protocol"])));
        }
    }
    if list(&slice["endpoints"]).is_empty() {
        out.line(0, "Endpoints: <none>");
        return;
    }
    out.line(0, "Endpoints:");
    for endpoint in list(&slice["endpoints"]) {
        let addresses: Vec<&str> = list(&endpoint["addresses"]).iter().map(of).collect();
        let addresses = addresses.join(", ");
        out.line(1, &format!("- Addresses:\t{}", if addresses.is_empty() { "<none>" } else { &addresses }));
        out.line(2, "Conditions:");
        let ready = endpoint["conditions"]["ready"].as_bool().map(|ready| ready.to_string());
        out.line(3, &format!("Ready:\t{}", ready.as_deref().unwrap_or("<unset>")));
        out.line(2, &format!("Hostname:\t{}", unset(of(&endpoint["hostname"]))));
        if let Value::Object(_) = &endpoint["targetRef"] {
            let target = &endpoint["targetRef"];
            out.line(2, &format!("TargetRef:\t{}/{}", of(&target["kind"]), of(&target["name"])));
        }
        out.line(2, &format!("NodeName:\t{}", unset(of(&endpoint["nodeName"]))));
        out.line(2, &format!("Zone:\t{}", unset(of(&endpoint["zone"]))));
    }
}

fn unset(text: &str) -> &str {
    if text.is_empty() { "<unset>" } else { text }
}
