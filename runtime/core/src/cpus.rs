//! Exclusive cpus of containers: which processors a container gets, and which the other containers share.
//!
//! Processors are numbers in ascending order, as in the kernel's lists (`0-2,5`).

use std::fmt::Write;

/// The message for a pod that requests exclusive cpus of a node that has none.
pub const NO_EXCLUSIVE_CPUS: &str = "this node has no exclusive cpus, for which it needs more than one cpu and the cpuset \
     controller of cgroup v2 (CONFIG_CPUSETS; where cgroup v1 has the controller, boot with cgroup_no_v1=cpuset)";

/// Parses a list of the kernel. `None` for anything else.
pub fn parse(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last > MOST || cpus.last().is_some_and(|before| first <= *before) {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// The highest number of a processor in a list: more than the kernel has (`NR_CPUS`).
const MOST: u32 = 1 << 14;

/// Writes processors as a list of the kernel.
pub fn list(cpus: &[u32]) -> String {
    let mut text = String::new();
    for range in cpus.chunk_by(|one, next| one + 1 == *next) {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match range {
            [one] => write!(text, "{comma}{one}"),
            [first, .., last] => write!(text, "{comma}{first}-{last}"),
            [] => Ok(()),
        };
    }
    text
}

/// Chooses `count` processors among `all` that nobody has: those with the highest numbers, since the kernel handles most
/// interrupts on the first one, which is never chosen. `None` if fewer are free.
pub fn choose(all: &[u32], taken: &[u32], count: usize) -> Option<Vec<u32>> {
    let free = all.iter().skip(1).rev().filter(|cpu| !taken.contains(cpu));
    let mut chosen: Vec<u32> = free.take(count).copied().collect();
    chosen.reverse();
    (chosen.len() == count).then_some(chosen)
}

/// The processors that nobody has.
pub fn rest(all: &[u32], taken: &[u32]) -> Vec<u32> {
    all.iter().filter(|cpu| !taken.contains(cpu)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_those_of_the_kernel() {
        for (text, cpus) in
            [("", &[][..]), ("0", &[0]), ("0-3", &[0, 1, 2, 3]), ("0,2-3,7", &[0, 2, 3, 7]), ("1,3", &[1, 3])]
        {
            assert_eq!(parse(text).as_deref(), Some(cpus), "{text}");
            assert_eq!(parse(&format!("{text}\n")).as_deref(), Some(cpus), "{text}");
            assert_eq!(list(cpus), text);
        }
        for wrong in ["a", "3-", "-1", "1,1", "3,2", "0-4294967295", "1 2"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_last_free_cpus_are_chosen_and_never_the_first() {
        let all = [0, 1, 2, 3];
        assert_eq!(choose(&all, &[], 1), Some(vec![3]));
        assert_eq!(choose(&all, &[3], 2), Some(vec![1, 2]));
        assert_eq!(choose(&all, &[2], 2), Some(vec![1, 3]));
        assert_eq!(choose(&all, &[], 3), Some(vec![1, 2, 3]));
        assert_eq!(choose(&all, &[], 4), None);
        assert_eq!(choose(&all, &[1, 2, 3], 1), None);
        assert_eq!(choose(&[], &[], 1), None);
        assert_eq!(rest(&all, &[1, 3]), [0, 2]);
    }
}
