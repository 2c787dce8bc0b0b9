//! The figures behind `docs/decisions/0001-image-layout.md`: a layer as one
//! EROFS file, as the store keeps it, against a layer as a directory.
//!
//! ```sh
//! sudo cargo run --release -p nodlet-rootfs --example spike -- ARCHIVE.tar
//! ```
//!
//! Works on an ext4 of its own, in a file below the temporary directory, so
//! that what the device is asked for is nobody else's doing. Needs root,
//! mkfs.ext4, mount and umount, and takes an OCI archive or a docker archive
//! with plain or gzip layers.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nodlet_rootfs::assemble::{Backing, mount_layer_by, mount_root};
use nodlet_rootfs::{LoadOptions, Platform, Store};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Who bakes images where root is not to be had.
const NOBODY: u32 = 65534;
const MOUNTS: usize = 51;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["erofs", archive, root] => load_erofs(Path::new(archive), Path::new(root)),
        ["directories", archive, root] => load_directories(Path::new(archive), Path::new(root)),
        [archive] => compare(Path::new(archive)),
        _ => Err("usage: spike ARCHIVE.tar".into()),
    }
}

fn compare(archive: &Path) -> Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    let archive = archive.canonicalize()?;
    let scratch = std::env::temp_dir().join(format!("nodlet-spike-{}", std::process::id()));
    fs::create_dir(&scratch)?;
    let disk = Disk::new(&scratch)?;
    let result = figures(&archive, &disk);
    let unmounted = umount2(&disk.directory, MntFlags::MNT_DETACH);
    fs::remove_dir_all(&scratch)?;
    unmounted?;
    result
}

fn figures(archive: &Path, disk: &Disk) -> Result<()> {
    let (erofs, directories) = (disk.directory.join("erofs"), disk.directory.join("directories"));
    println!("{:<44}{:>16}{:>16}", "", "(a) EROFS", "(b) directories");
    let row = |what: &str, a: String, b: String| println!("{what:<44}{a:>16}{b:>16}");
    let a = measured(disk, "erofs", archive, &erofs)?;
    let b = measured(disk, "directories", archive, &directories)?;
    row("load, wall ms", a.wall.as_millis().to_string(), b.wall.as_millis().to_string());
    row("load, CPU ms", a.cpu.as_millis().to_string(), b.cpu.as_millis().to_string());
    row("load, peak memory KiB", a.peak.to_string(), b.peak.to_string());
    row("load, KiB written to the device", a.written.to_string(), b.written.to_string());
    row("load, write requests to the device", a.writes.to_string(), b.writes.to_string());
    row("load, cache flushes of the device", a.flushes.to_string(), b.flushes.to_string());
    row("KiB taken on the disk", a.taken.to_string(), b.taken.to_string());
    row("inodes taken on the disk", a.inodes.to_string(), b.inodes.to_string());

    let store = Store::open(&erofs)?;
    let image = store.images()?.pop().ok_or("no image was loaded")?;
    let files: Vec<PathBuf> = image
        .layers
        .iter()
        .map(|layer| store.layer_path(layer).ok_or("no such layer"))
        .collect::<std::result::Result<_, _>>()?;
    let mut layers: Vec<PathBuf> =
        fs::read_dir(&directories)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    layers.sort();

    println!();
    let target = disk.directory.join("target");
    fs::create_dir(&target)?;
    for backing in [Backing::DirectFile, Backing::DirectLoop, Backing::File, Backing::Loop] {
        let mounts = files
            .iter()
            .map(|file| mount_layer_by(file, backing))
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let cached = cached_after_reading(disk, &mounts, &files)?;
        row(&format!("page cache KiB after reading all, {backing:?}"), cached.to_string(), String::new());
    }
    let opened: Vec<OwnedFd> =
        layers.iter().map(|layer| Ok(File::open(layer)?.into())).collect::<io::Result<_>>()?;
    let cached = cached_after_reading(disk, &opened, &[])?;
    row("page cache KiB after reading all", String::new(), cached.to_string());

    println!();
    for backing in [Backing::DirectFile, Backing::DirectLoop, Backing::File] {
        let median = median(|| mount_layer_by(&files[0], backing).map(drop).map_err(Into::into))?;
        row(&format!("mount one layer, µs, {backing:?}"), median.as_micros().to_string(), String::new());
    }
    let mounts = files
        .iter()
        .map(|file| mount_layer_by(file, Backing::DirectFile))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let over = |layers: &[OwnedFd]| {
        median(|| {
            let (upper, work) = (disk.directory.join("upper"), disk.directory.join("work"));
            fs::create_dir(&upper)?;
            fs::create_dir(&work)?;
            let layers: Vec<BorrowedFd<'_>> = layers.iter().map(AsFd::as_fd).collect();
            mount_root(&layers, &upper, &work, &target, false)?;
            umount2(&target, MntFlags::MNT_DETACH)?;
            fs::remove_dir_all(&upper)?;
            fs::remove_dir_all(&work)?;
            Ok(())
        })
    };
    row(
        "overlay over held layers, µs",
        over(&mounts)?.as_micros().to_string(),
        over(&opened)?.as_micros().to_string(),
    );

    println!();
    drop(mounts);
    row("a flipped bit in a file's data", flipped_erofs(disk, &files[0])?, flipped_directory(&layers[0])?);
    row(
        "baked as nobody, same bytes",
        baked_erofs(archive, disk, &files)?,
        baked_directories(archive, disk)?,
    );
    Ok(())
}

/// An ext4 in a file.
struct Disk {
    directory: PathBuf,
    /// `/sys/dev/block/<its device>/stat`
    statistics: PathBuf,
}

impl Disk {
    fn new(scratch: &Path) -> Result<Disk> {
        let (image, directory) = (scratch.join("disk"), scratch.join("mounted"));
        File::create(&image)?.set_len(4 << 30)?;
        fs::create_dir(&directory)?;
        // All inode tables now, not in the background while we measure.
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
            .arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&directory))?;
        let device = fs::metadata(&directory)?.dev();
        let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
        let statistics = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        Ok(Disk { directory, statistics })
    }

    /// Write requests, sectors written and flushes since it was made.
    fn statistics(&self) -> Result<[u64; 3]> {
        let text = fs::read_to_string(&self.statistics)?;
        let fields: Vec<u64> =
            text.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?;
        Ok([fields[4], fields[6], fields.get(15).copied().unwrap_or(0)])
    }

    fn usage(&self) -> Result<(u64, u64)> {
        let stat = nix::sys::statvfs::statvfs(&self.directory)?;
        let used = (stat.blocks() - stat.blocks_free()) * stat.fragment_size() / 1024;
        Ok((used, stat.files() - stat.files_free()))
    }
}

struct Measured {
    wall: Duration,
    cpu: Duration,
    peak: u64,
    written: u64,
    writes: u64,
    flushes: u64,
    taken: u64,
    inodes: u64,
}

/// Loads in a process of its own, from an empty page cache, until all is durable.
fn measured(disk: &Disk, how: &str, archive: &Path, root: &Path) -> Result<Measured> {
    settle()?;
    let (before, (used, inodes)) = (disk.statistics()?, disk.usage()?);
    let begun = Instant::now();
    let output = Command::new(std::env::current_exe()?).arg(how).arg(archive).arg(root).output()?;
    let wall = begun.elapsed();
    if !output.status.success() {
        return Err(format!("{how}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let usage: Vec<u64> = String::from_utf8(output.stdout)?
        .split_whitespace()
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?;
    // What is still dirty was written for this load, too.
    settle()?;
    let (after, (used_after, inodes_after)) = (disk.statistics()?, disk.usage()?);
    Ok(Measured {
        wall,
        cpu: Duration::from_micros(usage[0]),
        peak: usage[1],
        writes: after[0] - before[0],
        written: (after[1] - before[1]) / 2,
        flushes: after[2] - before[2],
        taken: used_after - used,
        inodes: inodes_after - inodes,
    })
}

/// Prints what the process has used: CPU µs and peak KiB.
fn tell_usage() -> Result<()> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
    println!("{} {}", micros(usage.user_time()) + micros(usage.system_time()), usage.max_rss());
    Ok(())
}

fn load_erofs(archive: &Path, root: &Path) -> Result<()> {
    Store::open(root)?.load_path(archive, &LoadOptions::default(), &mut |_| {})?;
    tell_usage()
}

/// What a store of directories would do: each layer unpacked beside its place,
/// everything synced at once, the layers renamed. Without whiteouts and
/// extended attributes, which makes it faster than it could be.
fn load_directories(archive: &Path, root: &Path) -> Result<()> {
    fs::create_dir(root)?;
    for (number, mut layer) in layers_of(archive)?.into_iter().enumerate() {
        let staged = root.join(format!("{number}.staged"));
        fs::create_dir(&staged)?;
        let mut tar = tar::Archive::new(flate2::read::MultiGzDecoder::new(&mut layer));
        tar.set_preserve_permissions(true);
        tar.set_preserve_ownerships(true);
        tar.unpack(&staged)?;
    }
    let directory = File::open(root)?;
    // SAFETY: the descriptor is open.
    nix::errno::Errno::result(unsafe { libc::syncfs(directory.as_raw_fd()) })?;
    for number in 0..fs::read_dir(root)?.count() {
        fs::rename(root.join(format!("{number}.staged")), root.join(number.to_string()))?;
    }
    directory.sync_all()?;
    tell_usage()
}

/// The gzip blobs of an archive, lowest layer first, recognised by their size alone:
/// good enough for a measurement.
fn layers_of(archive: &Path) -> Result<Vec<io::Take<File>>> {
    let mut tar = tar::Archive::new(File::open(archive)?);
    let mut blobs = BTreeMap::new();
    let mut manifests = Vec::new();
    for entry in tar.entries_with_seek()? {
        let mut entry = entry?;
        let (at, size) = (entry.raw_file_position(), entry.size());
        let name = entry.path()?.to_string_lossy().into_owned();
        let mut magic = [0; 2];
        match entry.read(&mut magic)? {
            2 if magic == [0x1f, 0x8b] => {
                blobs.insert(name.rsplit('/').next().unwrap_or("").to_owned(), (at, size));
            }
            _ if size < 65536 && name.contains("blobs/") => {
                let mut text = String::from_utf8_lossy(&magic).into_owned();
                entry.read_to_string(&mut text)?;
                manifests.push(text);
            }
            _ => {}
        }
    }
    let manifest =
        manifests.iter().find(|text| text.contains("\"layers\": [") || text.contains("\"layers\":["));
    let manifest: serde_json::Value =
        serde_json::from_str(manifest.ok_or("no manifest: is it an OCI archive?")?)?;
    let mut layers = Vec::new();
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        let digest = layer["digest"].as_str().unwrap_or("").trim_start_matches("sha256:");
        let (at, size) = blobs.get(digest).ok_or("a layer is not gzip")?;
        let mut file = File::open(archive)?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(*at))?;
        layers.push(file.take(*size));
    }
    Ok(layers)
}

/// Writes all that is dirty and empties the page cache.
fn settle() -> Result<()> {
    // SAFETY: takes nothing and touches no memory of ours.
    unsafe { libc::sync() };
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    Ok(())
}

/// Reads every file below the directories, and gives the page cache in KiB
/// that they hold, their backing files and loop devices included.
fn cached_after_reading(disk: &Disk, roots: &[OwnedFd], backing: &[PathBuf]) -> Result<u64> {
    settle()?;
    let mut files = Vec::new();
    let at = disk.directory.join("read");
    fs::create_dir(&at)?;
    for root in roots {
        // Attached, so that it can be walked by path.
        attach(root.as_fd(), &at)?;
        let mut todo = vec![at.clone()];
        while let Some(path) = todo.pop() {
            let metadata = fs::symlink_metadata(&path)?;
            if metadata.is_dir() {
                for entry in fs::read_dir(&path)? {
                    todo.push(entry?.path());
                }
            } else if metadata.is_file() && metadata.len() > 0 {
                let mut file = File::open(&path)?;
                io::copy(&mut file, &mut io::sink())?;
                files.push(cached(&file)?);
            }
        }
        umount2(&at, MntFlags::MNT_DETACH)?;
    }
    fs::remove_dir(&at)?;
    let mut pages: u64 = files.iter().sum();
    for path in backing {
        pages += cached(&File::open(path)?)?;
        for entry in fs::read_dir("/sys/block")? {
            let entry = entry?;
            let of = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
            if Path::new(of.trim()) == path {
                pages += cached(&File::open(Path::new("/dev").join(entry.file_name()))?)?;
            }
        }
    }
    Ok(pages * 4)
}

/// Pages of the file that are in memory, by `cachestat` (Linux 6.5).
fn cached(file: &File) -> Result<u64> {
    const CACHESTAT: libc::c_long = 451;
    let (range, mut stat) = ([0u64; 2], [0u64; 5]);
    // SAFETY: range and stat have the size of the kernel's structures.
    let result = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &range, &mut stat, 0) };
    nix::errno::Errno::result(result)?;
    Ok(stat[0])
}

/// Binds what a descriptor refers to.
fn attach(root: BorrowedFd<'_>, at: &Path) -> Result<()> {
    let clone = |flags: libc::c_long| {
        // SAFETY: the empty path ends in NUL and outlives the call.
        nix::errno::Errno::result(unsafe {
            libc::syscall(libc::SYS_open_tree, root.as_raw_fd(), c"".as_ptr(), flags)
        })
    };
    let tree = clone(1 | libc::c_long::from(libc::AT_EMPTY_PATH) | libc::c_long::from(libc::O_CLOEXEC))?;
    let at = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: both paths end in NUL and outlive the call.
    let moved =
        unsafe { libc::syscall(libc::SYS_move_mount, tree, c"".as_ptr(), libc::AT_FDCWD, at.as_ptr(), 4) };
    let moved = nix::errno::Errno::result(moved);
    // SAFETY: the descriptor is ours and used no more.
    unsafe { libc::close(tree as libc::c_int) };
    moved?;
    Ok(())
}

fn median(mut action: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut times = Vec::with_capacity(MOUNTS);
    for _ in 0..MOUNTS {
        let begun = Instant::now();
        action()?;
        times.push(begun.elapsed());
    }
    times.sort();
    Ok(times[MOUNTS / 2])
}

/// The largest file below a directory.
fn largest(root: &Path) -> Result<PathBuf> {
    let mut largest = (0, PathBuf::new());
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let metadata = fs::symlink_metadata(&path)?;
        if metadata.is_dir() {
            for entry in fs::read_dir(&path)? {
                todo.push(entry?.path());
            }
        } else if metadata.is_file() && metadata.len() > largest.0 {
            largest = (metadata.len(), path);
        }
    }
    Ok(largest.1)
}

fn flip(file: &Path, at: u64) -> Result<()> {
    let file = File::options().read(true).write(true).open(file)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ 1], at)?;
    file.sync_all()?;
    Ok(())
}

fn noticed(before: io::Result<Vec<u8>>, after: io::Result<Vec<u8>>) -> Result<String> {
    let before = before?;
    Ok(match after {
        Ok(after) if after == before => "not seen".to_owned(),
        Ok(_) => "wrong data".to_owned(),
        Err(error) => error.kind().to_string(),
    })
}

fn flipped_erofs(disk: &Disk, file: &Path) -> Result<String> {
    let at = disk.directory.join("flipped");
    fs::create_dir(&at)?;
    let read = |victim: Option<&Path>| -> Result<(PathBuf, io::Result<Vec<u8>>)> {
        settle()?;
        let mount = mount_layer_by(file, Backing::DirectFile)?;
        attach(mount.as_fd(), &at)?;
        let victim = victim.map_or_else(|| largest(&at), |victim| Ok(victim.to_owned()))?;
        let bytes = fs::read(&victim);
        umount2(&at, MntFlags::MNT_DETACH)?;
        Ok((victim, bytes))
    };
    let (victim, before) = read(None)?;
    // Its data lies in one run: looked for by its first block.
    let needle =
        before.as_ref().map(|bytes| bytes[..4096].to_vec()).map_err(|error| error.kind().to_string())?;
    let image = fs::read(file)?;
    let block = image.chunks(4096).position(|block| block == needle).ok_or("its data is not in the file")?;
    flip(file, block as u64 * 4096 + 100)?;
    let (_, after) = read(Some(&victim))?;
    flip(file, block as u64 * 4096 + 100)?;
    noticed(before, after)
}

fn flipped_directory(layer: &Path) -> Result<String> {
    let victim = largest(layer)?;
    let before = fs::read(&victim);
    flip(&victim, 100)?;
    let after = fs::read(&victim);
    flip(&victim, 100)?;
    noticed(before, after)
}

/// Runs one load of this program as an ordinary user.
fn as_nobody(disk: &Disk, how: &str, archive: &Path) -> Result<(PathBuf, bool, String)> {
    use std::os::unix::process::CommandExt;
    let home = disk.directory.join(format!("nobody-{how}"));
    fs::create_dir(&home)?;
    lchown(&home, Some(NOBODY), Some(NOBODY))?;
    let program = disk.directory.join("spike");
    fs::copy(std::env::current_exe()?, &program)?;
    let readable = disk.directory.join("archive");
    if !readable.exists() {
        fs::copy(archive, &readable)?;
    }
    let root = home.join("root");
    let output =
        Command::new(&program).arg(how).arg(&readable).arg(&root).uid(NOBODY).gid(NOBODY).output()?;
    Ok((root, output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn baked_erofs(archive: &Path, disk: &Disk, files: &[PathBuf]) -> Result<String> {
    let (root, done, error) = as_nobody(disk, "erofs", archive)?;
    if !done {
        return Ok(format!("no: {error}"));
    }
    let store = Store::open(&root)?;
    let image = store.images()?.pop().ok_or("nothing was baked")?;
    for (layer, file) in image.layers.iter().zip(files) {
        let baked = store.layer_path(layer).ok_or("a layer is missing")?;
        if fs::read(&baked)? != fs::read(file)? {
            return Ok("no: other bytes".to_owned());
        }
    }
    Ok(format!("yes ({})", Platform::of_this_machine()))
}

fn baked_directories(archive: &Path, disk: &Disk) -> Result<String> {
    let (_, done, error) = as_nobody(disk, "directories", archive)?;
    Ok(if done {
        "yes".to_owned()
    } else if error.contains("ermission") || error.contains("ermitted") {
        "no: EPERM".to_owned()
    } else {
        format!("no: {error}")
    })
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }
}
