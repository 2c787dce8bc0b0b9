//! `nodlet image`: manages the images on this board. Works on the image store itself, with or without an
//! agent.

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use lexopt::{Parser, ValueExt};
use nix::sys::signal::{SaFlags, Signal};
use nix::sys::stat::{Mode, umask};
use nodlet_host::cgroup::UnpackerCgroup;
use nodlet_host::paths::Paths;
use nodlet_rootfs::{Image, LoadError, LoadOptions, Loaded, Platform, Progress, Reference, Store, Unpacker};
use nodlet_runtime::engine::image_store_limit;
use serde_json::Value;

pub(crate) mod pull;

use crate::arguments::{Context, next_flag};
use crate::client::Client;
use crate::error::VerbError;
use crate::output::{self, Columns, StatusLine};
use crate::verb::{Outcome, Verb};

/// The first argument of the process that reads an archive.
pub(crate) const UNPACK: &str = "unpack";

/// Memory limit of the process that reads an archive. A layer of a gigabyte takes a few MiB. Names are held
/// in memory until all are known, and the most that `LayerBounds` accepts fit.
const UNPACK_MEMORY: u64 = 160 * 1024 * 1024;

pub(crate) const VERB: Verb = Verb { name: "image", summary: "Load, pull, list and remove images", run };

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let mut values = Vec::new();
    let mut options = LoadOptions::default();
    while let Some(flag) = next_flag(&mut parser, &mut values)? {
        match flag.as_str() {
            "--platform" => {
                let platform = Platform::parse(&parser.value()?.string()?);
                options.platform = Some(platform.map_err(|error| VerbError::chain(&error))?);
            }
            "--name" => {
                let name = Reference::parse(&parser.value()?.string()?);
                options.name = Some(name.map_err(VerbError::new)?);
            }
            other => context.global(other, &mut parser)?,
        }
    }
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let open = || Store::open(&context.root).map_err(|error| VerbError::chain(&error));
    match values[..] {
        ["load", source] => interruptible(|| load(&context.root, &open()?, source, options)),
        ["pull", name] => interruptible(|| pull(&context.root, &open()?, name, options)),
        ["pull", ..] => Err(context.wrong_use("pull requires one NAME")),
        ["load", ..] => Err(context.wrong_use("load requires one FILE, DIR or -")),
        ["ls" | "list"] => list(&open()?),
        ["rm" | "remove", ref names @ ..] if !names.is_empty() => remove(&context.root, &open()?, names),
        ["rm" | "remove"] => Err(context.wrong_use("rm requires the NAME or ID of an image")),
        [] => Err(context.wrong_use("one of load, pull, ls and rm is needed")),
        [other, ..] => Err(context.wrong_use(format!("{other:?} is none of load, pull, ls and rm"))),
    }
}

/// The signal that interrupted a load; 0 for none.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

/// Stops a load, which removes what it has written so far; otherwise ends this process, as without a handler.
extern "C" fn interrupt(signal: i32) {
    INTERRUPTED.store(signal, Ordering::Relaxed);
    if !nodlet_rootfs::stop_unpacker() {
        nodlet_kernel::signal::die_of(signal);
    }
}

/// Runs a load that leaves nothing behind when Ctrl-C or SIGTERM interrupts it.
fn interruptible(load: impl FnOnce() -> Outcome) -> Outcome {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler calls only functions that are safe there.
        unsafe { nodlet_kernel::signal::handle(signal, interrupt, SaFlags::SA_RESTART) }
            .map_err(std::io::Error::from)?;
    }
    let outcome = load();
    match (INTERRUPTED.load(Ordering::Relaxed), outcome) {
        (signal @ 1.., Err(_)) => {
            eprintln!("error: interrupted: the images on this board are unchanged");
            Ok(ExitCode::from(128 + u8::try_from(signal).unwrap_or(0)))
        }
        (_, outcome) => outcome,
    }
}

/// Says that this command waits for another one, if that takes longer than a second.
fn tell_of_wait(store: &Store) {
    let begun = Instant::now();
    while store.is_busy() {
        if begun.elapsed() >= Duration::from_secs(1) {
            eprintln!("Waiting for another load or pull of an image");
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn load(root: &Path, store: &Store, source: &str, mut options: LoadOptions) -> Outcome {
    tell_of_wait(store);
    let cgroup = confine(root, store, &mut options)?;
    let mut line = StatusLine::new();
    let loaded = if source == "-" {
        if std::io::stdin().is_terminal() {
            return Err(VerbError::new("an archive is expected from standard input, which is a terminal"));
        }
        let input = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        store.load_file(input, &options, &mut |step| show(&mut line, &step))
    } else {
        store.load_path(Path::new(source), &options, &mut |step| show(&mut line, &step))
    };
    drop(cgroup);
    line.clear();
    let named = |error: LoadError| match (&error, source) {
        (LoadError::Open { .. }, _) => VerbError::chain(&error),
        (_, "-") => VerbError::chain(&error).of("standard input"),
        (_, file) => VerbError::chain(&error).of(file),
    };
    for image in loaded.map_err(named)? {
        println!("{}", lines(&image));
        if let Some(name) = &options.name
            && !image.names.contains(&name.to_string())
        {
            eprintln!("Warning: --name {name} was not needed: the archive names its image itself");
        }
        if image.names.is_empty() {
            eprintln!(
                "Warning: the archive names no image, and a pod refers to an image by its name: load it with --name NAME"
            );
        }
        tell_of_earlier_builds(root, &image);
    }
    Ok(ExitCode::SUCCESS)
}

/// Names the pods that run an earlier build of a loaded image, if there is an agent: they run on.
fn tell_of_earlier_builds(root: &Path, loaded: &Loaded) {
    if !loaded.new {
        return;
    }
    for (namespace, name) in pods_with(root, |status| runs_earlier_build(status, loaded)) {
        let option = if namespace == "default" { String::new() } else { format!(" -n {namespace}") };
        eprintln!(
            "Pod {namespace}/{name} runs an earlier build of this image; `nodlet restart {name}{option}` restarts it \
             with this one"
        );
    }
}

/// The namespaces and names of the pods that have a container whose status is as required; none without an agent.
fn pods_with(root: &Path, is_so: impl Fn(&Value) -> bool) -> Vec<(String, String)> {
    let pods = Client::local(root).list("/api/v1/pods").unwrap_or_default();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let of = |pod: &Value, field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    let statuses = ["containerStatuses", "initContainerStatuses"];
    let has = |pod: &Value| statuses.iter().any(|field| list(&pod["status"][*field]).iter().any(&is_so));
    pods.iter().filter(|pod| has(pod)).map(|pod| (of(pod, "namespace"), of(pod, "name"))).collect()
}

/// Whether a container runs another image that had one of the names of a loaded image.
fn runs_earlier_build(status: &Value, loaded: &Loaded) -> bool {
    let Loaded { image, names, .. } = loaded;
    let has_name = names.iter().any(|name| status["image"] == **name);
    let is_it = status["imageID"] == *image.id.to_string()
        || image.repo_digests.iter().any(|digest| status["imageID"] == **digest);
    has_name && !is_it && status["state"]["running"].is_object()
}

fn pull(root: &Path, store: &Store, name: &str, options: LoadOptions) -> Outcome {
    let reference = Reference::parse(name).map_err(VerbError::new)?;
    tell_of_wait(store);
    let mut line = StatusLine::new();
    let pulled = pull::pull(root, store, &reference, options, &[], false, &mut |step| show(&mut line, &step));
    line.clear();
    for image in pulled? {
        println!("{}", lines(&image).replace(" loaded", " pulled"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a load read archives in a confined process. Applies the size limit of the root to the store. The
/// caller must keep the returned cgroup until the load has finished.
pub(crate) fn confine(
    root: &Path,
    store: &Store,
    options: &mut LoadOptions,
) -> Result<Option<UnpackerCgroup>, VerbError> {
    options.max_bytes = image_store_limit(&Paths::new(root)).map_err(|error| VerbError::chain(&error))?;
    same_modes();
    // A cgroup would count a store in memory as memory of the process, and kill the process for that.
    let cgroup = if store.is_in_memory() { None } else { memory_cgroup(root) };
    options.unpacker = Some(Unpacker {
        program: "/proc/self/exe".into(),
        arguments: vec![UNPACK.into()],
        memory: UNPACK_MEMORY,
        cgroups: cgroup.iter().map(UnpackerCgroup::procs).collect(),
    });
    Ok(cgroup)
}

/// Sets a fixed umask, so that written files have the same modes for every caller, as they have the same
/// bytes. Users other than root list images, too.
fn same_modes() {
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
}

/// The cgroup for the unpacking process. Only root can create one; for others the limit of the process itself
/// must suffice.
fn memory_cgroup(root: &Path) -> Option<UnpackerCgroup> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    // The agent names its cgroups after the resolved directory, not after a link to it.
    let root = root.canonicalize().or_else(|_| std::path::absolute(root)).unwrap_or_else(|_| root.to_owned());
    match UnpackerCgroup::make(&Paths::new(&root), UNPACK_MEMORY) {
        Ok(cgroup) => Some(cgroup),
        Err(error) => {
            eprintln!(
                "Warning: the archive is unpacked without a cgroup: {}",
                nodlet_host::error::chain(&error)
            );
            None
        }
    }
}

/// One line for each name of a loaded image; an image without names is reported by its ID.
pub(crate) fn lines(loaded: &Loaded) -> String {
    let did = if loaded.new { "loaded" } else { "unchanged" };
    if loaded.names.is_empty() {
        return format!("image/{} {did}", loaded.image.id);
    }
    let lines: Vec<String> = loaded.names.iter().map(|name| format!("image/{name} {did}")).collect();
    lines.join("\n")
}

/// Prints a warning, or, on a terminal, a progress line that is overwritten.
fn show(line: &mut StatusLine, step: &Progress) {
    match step {
        Progress::Warning(warning) => {
            line.clear();
            eprintln!("Warning: {warning}");
        }
        Progress::Reading { layer, bytes, total } => {
            let name: String = layer.rsplit('/').next().unwrap_or(layer).chars().take(16).collect();
            line.show_part(&format!("layer {name}: "), *bytes, *total);
        }
        _ => {}
    }
}

fn list(store: &Store) -> Outcome {
    let images = store.images().map_err(|error| VerbError::chain(&error))?;
    if images.is_empty() {
        eprintln!("No images found: load one with `nodlet image load FILE`");
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![["NAME", "ID", "PLATFORM", "SIZE"].map(str::to_owned).to_vec()];
    rows.extend(images.iter().flat_map(image_rows));
    Columns::default().write(&mut std::io::stdout().lock(), &rows)?;
    Ok(ExitCode::SUCCESS)
}

/// The table rows of an image, one for each name.
fn image_rows(image: &Image) -> Vec<Vec<String>> {
    let id: String = image.id.hex().chars().take(12).collect();
    let none = ["<none>".to_owned()];
    let names = if image.names.is_empty() { &none[..] } else { &image.names[..] };
    names
        .iter()
        .map(|name| vec![name.clone(), id.clone(), image.platform.to_string(), output::size(image.size)])
        .collect()
}

fn remove(root: &Path, store: &Store, names: &[&str]) -> Outcome {
    same_modes();
    tell_of_wait(store);
    let mut code = ExitCode::SUCCESS;
    for name in names {
        match store.remove(name) {
            Ok(removed) => {
                for name in &removed.names {
                    println!("image \"{name}\" untagged");
                }
                if let Some(image) = &removed.image {
                    println!("image \"{image}\" deleted");
                }
                let has_name = |status: &Value| removed.names.iter().any(|name| status["image"] == **name);
                for (namespace, pod) in pods_with(root, has_name) {
                    eprintln!(
                        "Warning: pod {namespace}/{pod} uses this name: its containers do not start again until an \
                         image is loaded under it"
                    );
                }
                if let Some(path) = &removed.remains {
                    let baked = path.display();
                    eprintln!("Warning: the image stays: it is part of the device image, in {baked}");
                }
            }
            Err(error) => {
                eprintln!("{}", VerbError::chain(&error));
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
