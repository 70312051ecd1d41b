//! Where files are written: links are followed, and what is no regular file is left alone.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvas_gguf::{
    GgufFile, GgufWriter, Metadata, OutputFile, Quant, Value, check_output, is_same_file, remove_abandoned,
};
use std::{
    os::unix::fs::{FileTypeExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn write(path: &Path, number: f32) -> Result<(), kvas_gguf::GgufError> {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::String("none".into()));
    let mut writer = GgufWriter::new(metadata);
    writer.declare("a", Quant::F32, &[1])?;
    let mut file = writer.create(path)?;
    file.write("a", &number.to_le_bytes())?;
    file.finish()
}

fn number(path: &Path) -> f32 {
    let file = GgufFile::open(path).unwrap();
    let bytes = file.data(&file.tensors()[0]);
    f32::from_le_bytes(bytes[..].try_into().unwrap())
}

#[test]
fn what_is_no_regular_file_is_refused_and_left() {
    let folder = Folder::new();
    let (inner, pipe) = (folder.file("folder"), folder.file("pipe"));
    std::fs::create_dir(&inner).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let device = Path::new("/dev/null");
    let endless = folder.file("endless");
    symlink("endless", &endless).unwrap();
    let missing = folder.file("missing/");
    for path in [&inner, &pipe, device, &endless, &missing] {
        let error = write(path, 1.0).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        assert!(error.ends_with("expected a regular file or a new one"), "{error}");
        assert_eq!(check_output(path).unwrap_err().to_string(), error);
    }
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert!(std::fs::metadata(device).unwrap().file_type().is_char_device());
    let nowhere = folder.file("no/such");
    let error = check_output(&nowhere.join("file")).unwrap_err().to_string();
    let what = format!("{} is not there, expected a folder that is there", nowhere.display());
    assert_eq!(error, format!("{}: {what}", nowhere.join("file").display()));
    let file = folder.file("file");
    std::fs::write(&file, "").unwrap();
    let error = check_output(&file.join("inside")).unwrap_err().to_string();
    assert!(error.ends_with(&format!("{} is a file, expected a folder that is there", file.display())), "{error}");
    std::fs::remove_file(file).unwrap();
    assert_eq!(folder.names(), ["endless", "folder", "pipe"]);
}

#[test]
fn links_are_followed() {
    let folder = Folder::new();
    std::fs::create_dir(folder.file("elsewhere")).unwrap();
    let (target, link, dangling) = (folder.file("elsewhere/model"), folder.file("link"), folder.file("dangling"));
    write(&target, 1.0).unwrap();
    symlink("elsewhere/model", &link).unwrap();
    symlink("elsewhere/new", &dangling).unwrap();
    write(&link, 2.0).unwrap();
    write(&dangling, 3.0).unwrap();
    assert_eq!((number(&target), number(&folder.file("elsewhere/new"))), (2.0, 3.0));
    assert_eq!(folder.names(), ["dangling", "elsewhere", "link"]);
    assert!(link.is_symlink() && dangling.is_symlink());
    // As any file of the user's, whom others may read.
    let plain = folder.file("plain");
    std::fs::write(&plain, "").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&target), mode(&plain));
    assert!(is_same_file(&link, &target) && !is_same_file(&link, &plain) && !is_same_file(&link, &folder.file("none")));
}

#[test]
fn a_file_knows_its_own_paths() {
    let folder = Folder::new();
    let (path, link, hard) = (folder.file("model"), folder.file("link"), folder.file("hard"));
    write(&path, 1.0).unwrap();
    symlink("model", &link).unwrap();
    std::fs::hard_link(&path, &hard).unwrap();
    let file = GgufFile::open(&path).unwrap();
    for same in [&path, &link, &hard] {
        let error = file.check_apart(same).unwrap_err().to_string();
        assert_eq!(error, format!("{}: is a file that is read for it, expected another one", same.display()));
    }
    file.check_apart(&folder.file("other")).unwrap();
}

#[test]
fn what_a_killed_program_left_is_removed() {
    let folder = Folder::new();
    let out = folder.file("out.gguf");
    let mut open = OutputFile::create(&out).unwrap();
    std::io::Write::write_all(&mut open, b"a part").unwrap();
    let others = [".other.gguf.7-0.part", ".out.gguf.7.part", ".out.gguf.7-0.whole", ".out.gguf.9-0.part", "out.gguf"];
    for name in [".out.gguf.7-0.part", ".out-00001-of-00002.gguf.7-1.part"].iter().chain(&others) {
        let is_new = *name == ".out.gguf.9-0.part";
        std::fs::write(folder.file(name), if is_new { "" } else { "left" }).unwrap();
    }
    remove_abandoned(&out);
    let left: Vec<String> = folder.names();
    assert_eq!(left.len(), others.len() + 1, "{left:?}");
    assert!(others.iter().all(|name| left.iter().any(|left| left == name)), "{left:?}");
    open.finish().unwrap();
    assert_eq!(std::fs::read(out).unwrap(), b"a part");
}
