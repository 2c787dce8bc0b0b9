//! The quality of service class of a pod, from the resources of its containers.

use crate::spec::{PodSpec, QosClass, Quantity};

/// `status.qosClass`. Only cpu and memory count, and only what is more than nothing.
pub fn qos_class(spec: &PodSpec) -> QosClass {
    let some = |quantity: &Option<Quantity>| quantity.clone().filter(|quantity| !quantity.is_zero());
    let mut any = false;
    let mut guaranteed = true;
    for container in &spec.containers {
        let resources = &container.resources;
        for (limit, request) in [
            (&resources.cpu_limit, &resources.cpu_request),
            (&resources.memory_limit, &resources.memory_request),
        ] {
            let (limit, request) = (some(limit), some(request));
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && limit == request;
        }
    }
    match (any, guaranteed) {
        (false, _) => QosClass::BestEffort,
        (true, true) => QosClass::Guaranteed,
        (true, false) => QosClass::Burstable,
    }
}
