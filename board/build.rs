//! Compresses the texts of `--help`, the files of `board/help`, for the module `help`: each is the name of a verb, a
//! line feed, the text and a NUL.

use std::io::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use flate2::Compression;
use flate2::write::DeflateEncoder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=help");
    let mut files =
        fs::read_dir("help")?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
    files.sort();
    let mut texts = DeflateEncoder::new(Vec::new(), Compression::best());
    for file in files {
        let verb = file.file_stem().and_then(|name| name.to_str()).ok_or("a name in UTF-8")?;
        write!(texts, "{verb}\n{}\0", fs::read_to_string(&file)?.trim_end())?;
    }
    let to = PathBuf::from(env::var("OUT_DIR")?).join("help.deflate");
    fs::write(to, texts.finish()?)?;
    Ok(())
}
