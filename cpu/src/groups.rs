//! What the control groups of this process leave it of the machine's memory: its own group, and all around it.

use crate::limits::field;
use std::path::{Path, PathBuf};

/// Which files tell of a group's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    /// The limit, what is in use, and what of that are file pages, as `memory.stat` names it.
    const fn names(self) -> [&'static str; 3] {
        match self {
            Version::V1 => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"],
            Version::V2 => ["memory.max", "memory.current", "file"],
        }
    }

    /// The group of a line of `/proc/self/cgroup`, if it is one of memory: `4:cpu,memory:/a/b`, `0::/a/b`.
    fn group(self, line: &str) -> Option<&str> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let is_one = match self {
            Version::V1 => controllers.split(',').any(|name| name == "memory"),
            Version::V2 => controllers.is_empty(),
        };
        is_one.then_some(group)
    }

    /// Where groups of memory are mounted, and which of them is the outermost there, by a line of `/proc/self/mountinfo`.
    fn mount(self, line: &str) -> Option<(&str, &str)> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, folder) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next()?, kind.nth(1).unwrap_or_default());
        let is_one = match self {
            Version::V1 => name == "cgroup" && options.split(',').any(|name| name == "memory"),
            Version::V2 => name == "cgroup2",
        };
        is_one.then_some((root, folder))
    }
}

/// Bytes that this process may still take; `None` where nothing limits it.
pub(crate) fn available() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let (groups, mounts) = (read(Path::new("/proc/self/cgroup"))?, read(Path::new("/proc/self/mountinfo"))?);
    let of = |(folder, version): (PathBuf, Version)| {
        let [limit, used, files] = version.names();
        let number = |name: &str| read(&folder.join(name));
        left([&number(limit)?, &number(used)?, &number("memory.stat").unwrap_or_default()], files)
    };
    folders(&groups, &mounts).into_iter().filter_map(of).min()
}

/// The folders of all groups that this process is in, its own ones first.
fn folders(groups: &str, mounts: &str) -> Vec<(PathBuf, Version)> {
    let mut all = Vec::new();
    for version in [Version::V2, Version::V1] {
        let Some(group) = groups.lines().find_map(|line| version.group(line)) else { continue };
        let Some((root, folder)) = mounts.lines().find_map(|line| version.mount(line)) else { continue };
        // Of a group that is not below the outermost one that is to be seen, that one is all there is.
        let inner = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
        for inner in inner.ancestors() {
            all.push((Path::new(folder).join(inner), version));
        }
    }
    all
}

/// What a limit leaves. Memory in use includes file pages, which the kernel gives back; so does what is left.
fn left([limit, used, stat]: [&str; 3], files: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (limit, used) = (number(limit)?, number(used)?);
    Some(limit.saturating_sub(used.saturating_sub(field(stat, files).unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "22 1 8:1 / / rw - ext4 /dev/sda rw\n\
                      33 23 0:28 / /sys/fs/cgroup/cpu rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n\
                      36 23 0:31 /box/1 /sys/fs/cgroup/memory ro shared:13 - cgroup cgroup rw,memory\n";

    fn named(groups: &str, mounts: &str) -> Vec<String> {
        folders(groups, mounts)
            .iter()
            .map(|(folder, _)| folder.to_str().unwrap().trim_end_matches('/').into())
            .collect()
    }

    #[test]
    fn a_group_and_all_around_it_are_looked_at() {
        let found = named("0::/user.slice/a.scope\n", V2);
        assert_eq!(found, ["/sys/fs/cgroup/user.slice/a.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"]);
        assert_eq!(named("0::/\n", V2), ["/sys/fs/cgroup"]);
        assert_eq!(named("0::/../../other\n", V2).last().unwrap(), "/sys/fs/cgroup");
        // What is mounted is the group of a container.
        let groups = "5:cpu,cpuacct:/elsewhere\n4:memory:/box/1/inner\n0::/box\n";
        assert_eq!(named(groups, V1), ["/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/memory"]);
        assert_eq!(named("4:memory:/another\n", V1), ["/sys/fs/cgroup/memory"]);
        assert_eq!(named(groups, ""), [""; 0]);
        assert_eq!(named("", V1), [""; 0]);
    }

    #[test]
    fn what_is_left_of_a_limit_includes_file_pages() {
        assert_eq!(left(["1000\n", "700\n", "anon 500\nfile 200\n"], "file"), Some(500));
        assert_eq!(left(["1000\n", "1500\n", ""], "file"), Some(0));
        assert_eq!(left(["max\n", "700\n", ""], "file"), None);
        assert_eq!(left(["1000\n", "700\n", "cache 9\ntotal_cache 100\n"], "total_cache"), Some(400));
    }
}
