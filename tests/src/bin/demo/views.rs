//! A reader of several files of a volume that is updated meanwhile: the step `views`.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::Failure;

/// Reads two files below `..data` of a volume, again and again, and compares them: the writer gives both the same
/// content. Ends when it has read them `reads` times and has seen `contents` different contents.
pub(crate) fn views(volume: &Path, files: [&str; 2], reads: u32, contents: usize) -> Result<(), Failure> {
    let (mut done, mut gone, mut seen) = (0, 0, BTreeSet::new());
    while done < reads || seen.len() < contents {
        // A reader that wants one view of several files resolves the link once.
        let view = volume.join(fs::read_link(volume.join("..data"))?);
        let read = |file: &Path| match fs::read(file) {
            // The volume has been updated since the link was read, and this view was removed.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        };
        // The kernel, too, looks up the file in the view that it finds first.
        let through_links = volume.join(files[0]);
        let (Some(one), Some(other), Some(whole)) =
            (read(&view.join(files[0]))?, read(&view.join(files[1]))?, read(&through_links)?)
        else {
            gone += 1;
            continue;
        };
        if one != other || one.is_empty() {
            return Err(
                format!("a torn view after {done} reads: {} and {} bytes", one.len(), other.len()).into()
            );
        }
        // A file whose content is of one update is never torn, whichever way leads to it.
        let whole = String::from_utf8(whole)?;
        let (number, _) = whole.split_once(' ').ok_or("a file without a number")?;
        // A loop over the numbers would take longer than the reads, in this program without optimizations.
        let count = (whole.len() + 1) / (number.len() + 1);
        if format!("{whole} ") != format!("{number} ").repeat(count) {
            return Err(format!("a torn file after {done} reads: {whole}").into());
        }
        seen.insert(number.to_owned());
        done += 1;
    }
    println!("{done} reads, {} contents, {gone} views gone", seen.len());
    Ok(())
}
