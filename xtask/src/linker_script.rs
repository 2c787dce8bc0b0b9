//! The order of code in a binary for boards: makes the linker script for `cargo xtask cross` from the lists
//! in `xtask/layout`.
//!
//! A list has one function per line, sorted, with `*` for the parts that differ between builds. `cargo xtask
//! layout` (`layout.rs`) writes the lists. A line that matches no function costs only memory, which `cargo
//! xtask gates` measures. Functions in no list are in `.text`.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::task::{Failure, Outcome, project};

/// The list of each section and a description of its functions, in the order of the sections in the binary.
pub(crate) const LISTS: [(&str, &str); 4] = [
    ("agent", "An agent from its start on, that has an image and no pods."),
    ("pods", "What the start of pods adds to that."),
    ("probes", "What probes, restarts, the end of pods and the clients that look at them add to that."),
    ("supervisor", "What a supervisor runs and an agent does not."),
];

/// Functions that LLVM makes of instruction sequences in several functions. Their numbers change with each
/// change and processor, and all groups call them, so they lie together, after the agent's functions.
pub(crate) const OUTLINED: &str = ".text.OUTLINED_FUNCTION_*";

/// Unwind tables of the C library, which nothing reads, and the names of compilers.
const LEFT_OUT: &str = "SECTIONS { /DISCARD/ : { *(.eh_frame) *(.comment) } }";

/// The functions of each list.
pub(crate) type Functions = [Vec<String>; LISTS.len()];

/// Reads the lists.
pub(crate) fn read() -> Result<Functions, Failure> {
    let mut functions = Functions::default();
    for ((list, _), functions) in LISTS.iter().zip(&mut functions) {
        let file = file(list);
        let text = fs::read_to_string(&file)
            .map_err(|error| format!("failed to read {}: {error}", file.display()))?;
        functions.extend(text.lines().map(str::to_owned));
    }
    Ok(functions)
}

/// Writes the lists.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "`cargo xtask layout` needs x86-64"))]
pub(crate) fn write(mut functions: Functions) -> Outcome {
    for ((list, _), functions) in LISTS.iter().zip(&mut functions) {
        functions.sort();
        let file = file(list);
        let text: String = functions.iter().map(|function| format!("{function}\n")).collect();
        fs::write(&file, text).map_err(|error| format!("failed to write {}: {error}", file.display()))?;
    }
    Ok(())
}

fn file(list: &str) -> PathBuf {
    project().join("xtask/layout").join(list)
}

/// Makes the linker script, with one section after another for the lists. The linker puts a function into the
/// first section that matches it.
pub(crate) fn script(functions: &Functions) -> String {
    let mut script = String::new();
    let mut after = ".text".to_owned();
    for (group, ((list, what), functions)) in LISTS.iter().zip(functions).enumerate() {
        let section = format!(".text.{list}");
        let _ = writeln!(script, "/* {what} */\nSECTIONS {{ {section} : {{");
        let outlined = (group == 0).then_some(OUTLINED);
        for function in functions.iter().map(String::as_str).chain(outlined) {
            // The input section of a function, or an object file whose functions have no sections of their
            // own.
            let _ = match function.starts_with(".text") {
                true => writeln!(script, "*({function})"),
                false => writeln!(script, "*{function}(.text)"),
            };
        }
        let _ = writeln!(script, "}} }} INSERT AFTER {after};");
        after = section;
    }
    let _ = writeln!(script, "{LEFT_OUT} INSERT AFTER {after};");
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_a_section_for_each_list_one_behind_the_other() {
        let functions = [&[".text.main", "libc.a:m*"][..], &[".text._RNvCs*_6nodlet3get"], &[], &[]];
        let script = script(&functions.map(|functions| functions.iter().map(ToString::to_string).collect()));
        assert_eq!(
            script,
            "/* An agent from its start on, that has an image and no pods. */\n\
             SECTIONS { .text.agent : {\n\
             *(.text.main)\n\
             *libc.a:m*(.text)\n\
             *(.text.OUTLINED_FUNCTION_*)\n\
             } } INSERT AFTER .text;\n\
             /* What the start of pods adds to that. */\n\
             SECTIONS { .text.pods : {\n\
             *(.text._RNvCs*_6nodlet3get)\n\
             } } INSERT AFTER .text.agent;\n\
             /* What probes, restarts, the end of pods and the clients that look at them add to that. */\n\
             SECTIONS { .text.probes : {\n\
             } } INSERT AFTER .text.pods;\n\
             /* What a supervisor runs and an agent does not. */\n\
             SECTIONS { .text.supervisor : {\n\
             } } INSERT AFTER .text.probes;\n\
             SECTIONS { /DISCARD/ : { *(.eh_frame) *(.comment) } } INSERT AFTER .text.supervisor;\n"
        );
    }

    #[test]
    fn the_lists_are_sorted_and_name_nothing_twice() {
        for ((list, _), functions) in LISTS.iter().zip(read().unwrap()) {
            assert!(!functions.is_empty() && functions.iter().all(|function| !function.is_empty()), "{list}");
            assert!(functions.is_sorted_by(|one, next| one < next), "{list}");
            assert!(functions.iter().all(|function| function != OUTLINED), "{list}");
        }
    }
}
