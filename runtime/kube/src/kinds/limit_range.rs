//! LimitRanges, as `kubectl describe` prints them, alone and with their namespace.

use std::collections::BTreeSet;

use serde_json::Value;

use super::describe::Tabs;
use super::describe::text::{list, of, quantity};

const HEAD: &str = "Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio";
const LINE: &str = "----\t--------\t---\t---\t---------------\t-------------\t-----------------------";

/// The fields of a limit, in the order of the columns.
const FIELDS: [&str; 5] = ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"];

pub(super) fn describe(range: &Value) -> String {
    let mut tabs = Tabs::default();
    let out = &mut tabs;
    let metadata = &range["metadata"];
    out.line(0, &format!("Name:\t{}", of(&metadata["name"])));
    out.line(0, &format!("Namespace:\t{}", of(&metadata["namespace"])));
    out.line(0, HEAD);
    out.line(0, LINE);
    limits(out, range, "");
    tabs.finish()
}

/// Describes all LimitRanges of a namespace.
pub(super) fn of_namespace(out: &mut Tabs, ranges: &[Value]) {
    if ranges.is_empty() {
        return out.line(0, "No LimitRange resource.");
    }
    out.line(0, "Resource Limits");
    out.line(0, &format!(" {HEAD}"));
    out.line(0, &format!(" {LINE}"));
    ranges.iter().for_each(|range| limits(out, range, " "));
}

fn limits(out: &mut Tabs, range: &Value, prefix: &str) {
    for limit in list(&range["spec"]["limits"]) {
        // kubectl prints the resources in random order.
        let resources: BTreeSet<&String> = FIELDS
            .iter()
            .filter_map(|field| limit[field].as_object())
            .flat_map(|amounts| amounts.keys())
            .collect();
        for resource in resources {
            let mut line = format!("{prefix}{}\t{resource}", of(&limit["type"]));
            for field in FIELDS {
                match &limit[field][resource] {
                    Value::Null => line.push_str("\t-"),
                    amount => line.push_str(&format!("\t{}", quantity(amount))),
                }
            }
            out.line(0, &line);
        }
    }
}
