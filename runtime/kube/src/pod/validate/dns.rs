//! Validation of host names, DNS and aliases.

use serde_json::Value;

use crate::object::check::invalid;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::rules;
use crate::object::value::{flag, list, text};

/// `validateHostnameOverride`.
pub(super) fn hostname_override(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(name) = spec.get("hostnameOverride").and_then(Value::as_str) else { return };
    let path = path.child("hostnameOverride");
    for field in ["setHostnameAsFQDN", "hostNetwork"] {
        if flag(spec, field) {
            errors.push(FieldError::forbidden(&path, format!("may not be specified when {field} is true")));
        }
    }
    if name.len() > 64 {
        errors.push(FieldError::too_long(&path, 64));
    }
    invalid(&path, name, rules::dns_subdomain(name), errors);
}

pub(super) fn dns_config(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let config = spec.get("dnsConfig");
    let nameservers = config.map_or(&[][..], |config| list(config, "nameservers"));
    if text(spec, "dnsPolicy") == "None" {
        if config.is_none() {
            errors.push(FieldError::required(path, "must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if nameservers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(&path.child("nameservers"), detail));
            return;
        }
    }
    let Some(config) = config else { return };
    if nameservers.len() > 3 {
        let path = path.child("nameservers");
        errors.push(FieldError::invalid_value(
            &path,
            &config["nameservers"],
            "must not have more than 3 nameservers",
        ));
    }
    for (index, server) in nameservers.iter().enumerate() {
        let path = path.child("nameservers");
        let server = server.as_str().unwrap_or_default();
        invalid(&path.index(index), server, rules::ip(server), errors);
    }
    let searches = list(config, "searches");
    if searches.len() > 32 {
        let path = path.child("searches");
        errors.push(FieldError::invalid_value(
            &path,
            &config["searches"],
            "must not have more than 32 search paths",
        ));
    }
    let length = searches
        .iter()
        .filter_map(Value::as_str)
        .map(|search| search.len() + 1)
        .sum::<usize>()
        .saturating_sub(1);
    if length > 2048 {
        errors.push(FieldError::invalid_value(
            &path.child("searches"),
            &config["searches"],
            "must not have more than 2048 characters (including spaces) in the search list",
        ));
    }
    for (index, search) in searches.iter().filter_map(Value::as_str).enumerate() {
        if search != "." {
            let search = search.strip_suffix('.').unwrap_or(search);
            let path = path.child("searches");
            invalid(&path.index(index), search, rules::dns_subdomain_with_underscore(search), errors);
        }
    }
    for (index, option) in list(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            let path = path.child("options");
            errors.push(FieldError::required(&path.index(index), "must not be empty"));
        }
    }
}

pub(super) fn host_aliases(aliases: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, alias) in aliases.iter().enumerate() {
        let path = path.index(index);
        let ip = text(alias, "ip");
        invalid(&path.child("ip"), ip, rules::ip(ip), errors);
        for (index, hostname) in list(alias, "hostnames").iter().filter_map(Value::as_str).enumerate() {
            let path = path.child("hostnames");
            invalid(&path.index(index), hostname, rules::dns_subdomain(hostname), errors);
        }
    }
}
