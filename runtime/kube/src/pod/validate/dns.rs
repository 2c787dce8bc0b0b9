//! Validation of host names, DNS and aliases.

use serde_json::Value;

use crate::object::check::Field;
use crate::object::rules;
use crate::object::value::{flag, list, text};

/// `validateHostnameOverride`.
pub(super) fn hostname_override(spec: Field<'_, '_>) {
    let Some(name) = spec.get("hostnameOverride") else { return };
    for field in ["setHostnameAsFQDN", "hostNetwork"].into_iter().filter(|field| flag(spec.value, field)) {
        name.forbidden(format!("may not be specified when {field} is true"));
    }
    if name.text().len() > 64 {
        name.too_long(64);
    }
    name.check(rules::dns_subdomain);
}

pub(super) fn dns_config(spec: Field<'_, '_>) {
    let config = spec.child("dnsConfig");
    let (nameservers, searches) = (config.child("nameservers"), config.child("searches"));
    let servers = list(config.value, "nameservers").len();
    if text(spec.value, "dnsPolicy") == "None" {
        if config.value.is_null() {
            return config.required("must provide `dnsConfig` when `dnsPolicy` is None");
        }
        if servers == 0 {
            return nameservers.required("must provide at least one DNS nameserver when `dnsPolicy` is None");
        }
    }
    if servers > 3 {
        nameservers.invalid("must not have more than 3 nameservers");
    }
    for server in config.items("nameservers") {
        server.check(rules::ip);
    }
    let all = list(config.value, "searches");
    if all.len() > 32 {
        searches.invalid("must not have more than 32 search paths");
    }
    let length: usize = all.iter().filter_map(Value::as_str).map(|search| search.len() + 1).sum();
    if length.saturating_sub(1) > 2048 {
        searches.invalid("must not have more than 2048 characters (including spaces) in the search list");
    }
    for search in config.items("searches").filter(|search| search.text() != ".") {
        let text = search.text();
        search.check_text(text.strip_suffix('.').unwrap_or(text), rules::dns_subdomain_with_underscore);
    }
    for option in config.items("options").filter(|option| text(option.value, "name").is_empty()) {
        option.required("must not be empty");
    }
}

pub(super) fn host_aliases(spec: Field<'_, '_>) {
    for alias in spec.items("hostAliases") {
        alias.child("ip").check(rules::ip);
        for hostname in alias.items("hostnames") {
            hostname.check(rules::dns_subdomain);
        }
    }
}
