//! Checks of the links that `nodlet init` configures on a board, by the report of its network service.

use serde_json::Value;

use super::report::Finding;

/// The file in which the network service reports links.
const STATUS: &str = "/run/nodlet/network.json";

/// Returns a check for each link; none on a machine with another init.
pub(super) fn findings() -> Vec<Finding> {
    let status = nodlet_kernel::own_file::read(std::path::Path::new(STATUS))
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let links = status.as_ref().and_then(|status| status["links"].as_array());
    links.into_iter().flatten().map(judge).collect()
}

fn judge(link: &Value) -> Finding {
    let name = link["link"].as_str().unwrap_or_default();
    let is_out = link["carrier"] == false;
    let lack = match (link["failure"].as_str(), link["address"].as_str()) {
        (Some(failure), _) => failure,
        (None, Some(address)) if !is_out => {
            let how = if link["dhcp"].is_object() { "by DHCP" } else { "fixed by the profile" };
            return Finding::ok(format!("{name}: {address} {how}"));
        }
        (None, _) if is_out => "no carrier",
        (None, _) => "no DHCP server has responded yet",
    };
    Finding::warning(format!("{name}: {lack}")).because(
        "Pods run; the board is unreachable by this link.",
        "Check the cable and the DHCP server; the board retries automatically.",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::verbs::doctor::report::Verdict;

    #[test]
    fn a_link_without_cable_server_or_success_is_a_warning() {
        for (link, verdict, found) in [
            (
                json!({"link": "a", "carrier": true, "address": "10.0.0.2/24", "dhcp": {}}),
                Verdict::Ok,
                "a: 10.0.0.2/24 by DHCP",
            ),
            (
                json!({"link": "a", "carrier": true, "address": "10.0.0.2/24"}),
                Verdict::Ok,
                "a: 10.0.0.2/24 fixed by the profile",
            ),
            (
                json!({"link": "a", "carrier": false, "address": "10.0.0.2/24"}),
                Verdict::Warning,
                "a: no carrier",
            ),
            (
                json!({"link": "a", "carrier": true, "dhcp": {}}),
                Verdict::Warning,
                "a: no DHCP server has responded yet",
            ),
            (json!({"link": "a", "carrier": true, "failure": "failed"}), Verdict::Warning, "a: failed"),
        ] {
            let check = judge(&link);
            assert_eq!((check.verdict, check.text.as_str()), (verdict, found));
        }
    }
}
