//! GPUs and the libraries that go with them. Libraries are looked for where the loader looks, and not loaded: a library
//! runs its own code on loading, and one that does not fit may end the process.

use std::path::{Path, PathBuf};

use super::{Finding, field, text};

/// Folders that the loader of any distribution looks into, and where CUDA puts itself.
const FOLDERS: [&str; 9] = [
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
];
/// Includes of the loader's configuration that are followed.
const INCLUDES_MAX: usize = 100;

/// Everything about GPUs.
pub(super) fn look() -> Vec<Finding> {
    let folders = folders();
    let driver = find(&folders, &["libcuda.so.1"]);
    let devices = Devices::of(Path::new("/dev"), Path::new("/proc/driver/nvidia"));
    let mut findings = vec![gpus(&devices, driver.as_deref())];
    let libraries: [(&'static str, &[&str], &str); 2] = [
        ("NCCL", &["libnccl.so.2"], "only for several GPUs that share a model: install libnccl2"),
        (
            "NIXL",
            &["libnixl.so", "libnixl_capi.so", "libnixl_capi.so.0"],
            "only for moving KV memory between GPU hosts: the Python package nixl brings it",
        ),
    ];
    for (name, files, cure) in libraries {
        findings.push(match find(&folders, files) {
            Some(file) => Finding::well(name, file.display().to_string()),
            None => Finding::note(name, format!("no {} on the loader's path", files[0]), cure),
        });
    }
    findings
}

/// What the system shows of GPUs.
#[derive(Debug, Default)]
struct Devices {
    /// Device files, in order.
    files: Vec<String>,
    /// The file through which a program asks for them.
    control: bool,
    /// Names of the GPUs, as the driver says them.
    models: Vec<String>,
    /// The driver's version line.
    driver: Option<String>,
}

impl Devices {
    fn of(dev: &Path, driver: &Path) -> Self {
        let mut files: Vec<String> = entries(dev)
            .filter_map(|path| {
                let number = path.file_name()?.to_str()?.strip_prefix("nvidia")?;
                number.parse::<u32>().ok().map(|_| path.display().to_string())
            })
            .collect();
        files.sort();
        let information = entries(&driver.join("gpus")).map(|gpu| gpu.join("information"));
        let model = |file: PathBuf| field(&text(&file.display().to_string())?, "Model:").map(str::to_owned);
        let mut models: Vec<String> = information.filter_map(model).collect();
        models.sort();
        let version = text(&driver.join("version").display().to_string());
        Self {
            files,
            control: dev.join("nvidiactl").exists(),
            models,
            driver: version.and_then(|text| field(&text, "NVRM version:").map(str::to_owned)),
        }
    }
}

fn gpus(devices: &Devices, library: Option<&Path>) -> Finding {
    let name = "GPUs";
    let mut missing = Vec::new();
    if devices.driver.is_none() && devices.files.is_empty() {
        missing.push("no NVIDIA driver is loaded (/proc/driver/nvidia is not there)");
    } else if devices.files.is_empty() {
        missing.push("the driver is loaded, and no /dev/nvidia0 is visible here");
    }
    if !devices.files.is_empty() && !devices.control {
        missing.push("/dev/nvidiactl is not visible here");
    }
    if library.is_none() {
        missing.push("no libcuda.so.1 on the loader's path");
    }
    if devices.files.is_empty() || !missing.is_empty() {
        let cure = "not needed: models run on the CPU; for a GPU, install the NVIDIA driver (in a container: start it with --gpus all)";
        return Finding::note(name, format!("none usable: {}", missing.join("; ")), cure);
    }
    let models = if devices.models.is_empty() { devices.files.join(", ") } else { devices.models.join(", ") };
    let driver = devices.driver.as_deref().unwrap_or("driver of unknown version");
    Finding::note(name, format!("{models}; {driver}"), "this version of Millstream computes on the CPU")
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Where the loader looks, in its order: the environment, its configuration, the usual folders.
fn folders() -> Vec<PathBuf> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
    folders.extend(configured(Path::new("/etc/ld.so.conf")));
    folders.extend(FOLDERS.iter().map(PathBuf::from));
    folders
}

/// Folders of the loader's configuration, includes followed.
fn configured(file: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let mut files = vec![file.to_path_buf()];
    let mut seen = 0;
    while let Some(file) = files.pop() {
        seen += 1;
        if seen > INCLUDES_MAX {
            break;
        }
        for line in std::fs::read_to_string(&file).unwrap_or_default().lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            match line.strip_prefix("include ") {
                Some(pattern) => files.extend(included(&file, Path::new(pattern.trim()))),
                None if line.starts_with('/') => folders.push(PathBuf::from(line)),
                None => {}
            }
        }
    }
    folders
}

/// Files of an `include` line: of a pattern, the kind that is used there, `FOLDER/*.conf`.
fn included(file: &Path, pattern: &Path) -> Vec<PathBuf> {
    let pattern = file.parent().unwrap_or(Path::new("/")).join(pattern);
    match (pattern.parent(), pattern.file_name().and_then(|name| name.to_str())) {
        (Some(folder), Some("*.conf")) => {
            let mut files: Vec<PathBuf> = entries(folder)
                .filter(|path| path.extension().is_some_and(|ending| ending == "conf"))
                .collect();
            files.sort();
            files
        }
        _ => vec![pattern],
    }
}

fn find(folders: &[PathBuf], names: &[&str]) -> Option<PathBuf> {
    let mut paths = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    paths.find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_for_a_gpu_is_said() {
        let root = tempfile::tempdir().expect("a folder");
        let (dev, driver) = (root.path().join("dev"), root.path().join("nvidia"));
        let nothing = Devices::of(&dev, &driver);
        assert!(gpus(&nothing, None).found.contains("no NVIDIA driver"), "{nothing:?}");
        std::fs::create_dir_all(&dev).expect("a folder");
        std::fs::create_dir_all(driver.join("gpus/0000")).expect("a folder");
        let write = |path: PathBuf, text: &str| std::fs::write(path, text).expect("a file");
        write(driver.join("version"), "NVRM version: Kernel Module 570.1\nGCC version: 12\n");
        write(driver.join("gpus/0000/information"), "Model: \t NVIDIA H200\nIRQ: 1\n");
        assert!(gpus(&Devices::of(&dev, &driver), None).found.contains("no /dev/nvidia0"));
        write(dev.join("nvidia0"), "");
        write(dev.join("nvidiactl"), "");
        write(dev.join("nvidia-uvm"), "");
        let there = Devices::of(&dev, &driver);
        assert!(gpus(&there, None).found.contains("libcuda.so.1"));
        let found = gpus(&there, Some(Path::new("libcuda.so.1"))).found;
        assert_eq!(found, "NVIDIA H200; Kernel Module 570.1");
    }

    #[test]
    fn the_configuration_of_the_loader_is_followed() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).expect("a file");
        std::fs::create_dir(root.path().join("d")).expect("a folder");
        write("ld.so.conf", "include d/*.conf\n/opt/one # a place\n");
        write("d/a.conf", "/opt/two\n");
        write("d/b.txt", "/opt/three\n");
        let found = configured(&root.path().join("ld.so.conf"));
        assert_eq!(found, [PathBuf::from("/opt/one"), PathBuf::from("/opt/two")]);
    }
}
