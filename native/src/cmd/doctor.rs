//! `pipeplan doctor`

use serde_json::{Value, json};

use super::failure::Failure;
use super::{format, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan doctor
  pipeplan doctor --json";

/// Show which GPUs and libraries this machine has to run plans, and how to get what is missing.
///
/// Looks for the driver, NVRTC, cuBLAS, NCCL and NVML in the folders of the system, of the CUDA toolkit and of Python
/// wheels. A missing library is not an error: the exit code is 0.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// Something that was looked for.
struct Finding {
    what: String,
    is_there: bool,
    text: String,
    details: Value,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let findings = findings();
    if args.json {
        let list: Vec<Value> = findings
            .iter()
            .map(|finding| {
                let Finding { what, is_there, text, details } = finding;
                json!({ "what": what, "found": is_there, "text": text, "details": details })
            })
            .collect();
        return output::print_json(&json!({ "findings": list }));
    }
    let mut text = String::new();
    let rows: Vec<Vec<String>> = findings
        .iter()
        .filter(|finding| finding.is_there)
        .map(|finding| vec![finding.what.clone(), finding.text.clone()])
        .collect();
    if !rows.is_empty() {
        text.push_str(&format::table(&["found", ""], &rows, 0));
    }
    for finding in findings.iter().filter(|finding| !finding.is_there) {
        text.push_str(&format!("\n{}\n", finding.text));
    }
    output::print(&text)
}

#[cfg(feature = "cuda")]
fn findings() -> Vec<Finding> {
    use pipeplan::backend::cuda::libraries::{Which, search};
    use pipeplan::backend::cuda::nvml::{Nvml, Way};
    use pipeplan::backend::cuda::{compile, cublas, driver};
    use pipeplan::transport::nccl;

    let library = |which: Which, version: Option<String>| {
        let search = search(which);
        let path = search.found.as_ref().map(|path| path.display().to_string());
        let text = match (&path, &version) {
            (Some(path), Some(version)) => format!("{version}, {path}"),
            (Some(path), None) => path.clone(),
            (None, _) => search.to_string(),
        };
        let folders: Vec<String> = search.folders.iter().map(|folder| folder.display().to_string()).collect();
        let details = json!({
            "path": path, "version": version, "file_names": which.file_names(), "folders": folders,
            "variable": which.variable(), "how_to_get": which.how_to_get(),
        });
        Finding { what: which.name().to_string(), is_there: search.found.is_some(), text, details }
    };
    let dotted = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let gpus = driver::gpus();
    let nvml = Nvml::load();
    let release = nvml.as_ref().and_then(Nvml::driver_version);
    let cuda = gpus.as_ref().ok().map(|(version, _)| {
        let most = format!("up to CUDA {}", dotted((version / 1000, version % 1000 / 10)));
        release.iter().cloned().chain([most]).collect::<Vec<_>>().join(", ")
    });
    let mut findings = vec![library(Which::Driver, cuda)];
    match &gpus {
        Ok((_, gpus)) => findings.extend(gpus.iter().map(|gpu| {
            let others = gpus.iter().filter(|other| other.ordinal != gpu.ordinal);
            let ways: Vec<(usize, Option<Way>, Option<u32>)> = others
                .map(|other| {
                    let way = nvml.as_ref().and_then(|nvml| nvml.way(&gpu.bus, &other.bus));
                    let rank = gpu.links.iter().find(|(ordinal, _)| *ordinal == other.ordinal).map(|(_, rank)| *rank);
                    (other.ordinal, way, rank)
                })
                .collect();
            // Without direct access, what goes from one to the other goes through host memory.
            let shown = |(other, way, rank): &(usize, Option<Way>, Option<u32>)| {
                let way = way.map(|way| format!(" over {way}")).unwrap_or_default();
                let reach = if rank.is_some() { "reaches" } else { "does not reach" };
                format!(", {reach} GPU {other}{way}")
            };
            let links: String = ways.iter().map(shown).collect();
            Finding {
                what: format!("GPU {}", gpu.ordinal),
                is_there: true,
                text: format!(
                    "{}, {}, compute capability {}, {} multiprocessors{links}",
                    gpu.name,
                    format::bytes(gpu.bytes),
                    dotted(gpu.capability),
                    gpu.multiprocessors
                ),
                details: json!({
                    "name": gpu.name, "bytes": gpu.bytes, "compute_capability": dotted(gpu.capability),
                    "multiprocessors": gpu.multiprocessors, "bus": gpu.bus,
                    "links": ways.iter().map(|(other, way, rank)| json!({
                        "gpu": other, "rank": rank, "way": way.map(Way::short), "text": way.map(|way| way.to_string()),
                    })).collect::<Vec<_>>(),
                }),
            }
        })),
        Err(error) if search(Which::Driver).found.is_some() => {
            let text = format!("The driver is installed, but shows no GPU: {error}");
            findings.push(Finding { what: "GPUs".to_string(), is_there: false, text, details: Value::Null });
        }
        Err(_) => {}
    }
    findings.push(library(Which::Nvrtc, compile::version().map(dotted)));
    let cublas = cublas::version().map(|(major, minor, patch)| format!("{major}.{minor}.{patch}"));
    if let (Err(error), Some(path)) = (&cublas, &search(Which::Cublas).found) {
        let text = format!("cuBLAS is installed ({}), but cannot be called: {error}", path.display());
        findings.push(Finding { what: "cuBLAS".to_string(), is_there: false, text, details: Value::Null });
    }
    findings.push(library(Which::Cublas, cublas.ok()));
    let nccl_version = nccl::Library::load().ok().map(|library| library.version().to_string());
    findings.push(library(Which::Nccl, nccl_version));
    findings.push(library(Which::Nvml, release));
    findings
}

#[cfg(not(feature = "cuda"))]
fn findings() -> Vec<Finding> {
    let text = "This binary was built without the feature `cuda`: build it with `cargo build --release -p pipeplan`.";
    vec![Finding { what: "GPU runner".to_string(), is_there: false, text: text.to_string(), details: Value::Null }]
}
