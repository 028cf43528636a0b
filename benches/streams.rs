//! Many clients at once: 500 streams on a tiny checkpoint, beside one stream alone in the same run; then more clients
//! than the gateway admits. The server is the real binary in a process of its own, so that its memory can be read.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use serde_json::json;

/// Clients at once, within the gateway's default of 512.
const CLIENTS: usize = 500;
/// Clients at once, beyond it.
const CROWD: usize = 800;
/// Tokens each of them asks for.
const TOKENS: u32 = 64;

/// The server's process; ended when dropped.
struct Served {
    child: Child,
    address: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn start() -> Result<Self> {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/tests/oracle/tiny-llama");
        let mut child = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["serve", "--model", model, "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("cannot start the server")?;
        let out = child.stdout.take().context("the server has an output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let address = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        ensure!(address.starts_with("http://"), "the server said {line:?}");
        Ok(Self { child, address })
    }

    /// A line of the kernel's account of the process, in MiB.
    fn memory(&self, line: &str) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|text| text.starts_with(line)).context("no such line")?;
        let kib: f64 = line.split_whitespace().nth(1).context("a number")?.parse()?;
        Ok(kib / 1024.0)
    }
}

/// What one client saw.
#[derive(Clone, Copy)]
struct Seen {
    status: u16,
    retry_after: bool,
    first: Duration,
    whole: bool,
}

async fn client(http: reqwest::Client, address: String, number: usize) -> Result<Seen> {
    let body = json!({
        "model": "default", "stream": true, "max_tokens": TOKENS, "temperature": 0.8, "seed": number,
        "messages": [{"role": "user", "content": format!("Client number {number} says hello.")}],
    });
    let start = now();
    let response = http.post(format!("{address}/v1/chat/completions")).json(&body).send().await?;
    let status = response.status().as_u16();
    let retry_after = response.headers().contains_key("retry-after");
    let (mut stream, mut first, mut text) = (response.bytes_stream(), Duration::ZERO, Vec::new());
    while let Some(piece) = stream.next().await {
        text.extend_from_slice(&piece?);
        if first.is_zero() && text.windows(12).any(|window| window == b"\"content\":\"\"") && text.len() > 400
        {
            first = now() - start;
        }
    }
    let text = String::from_utf8_lossy(&text);
    let whole = text.trim_end().ends_with("data: [DONE]") && text.contains("\"finish_reason\":\"");
    Ok(Seen { status, retry_after, first, whole })
}

/// Runs `clients` at once and says how long the last one took.
async fn crowd(served: &Served, clients: usize) -> Result<(Vec<Seen>, Duration)> {
    let http = reqwest::Client::builder().pool_max_idle_per_host(0).build()?;
    let start = now();
    let runs = (0..clients).map(|number| tokio::spawn(client(http.clone(), served.address.clone(), number)));
    let runs: Vec<_> = runs.collect();
    let mut seen = Vec::new();
    for run in runs {
        seen.push(run.await??);
    }
    Ok((seen, now() - start))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn percentile(seen: &[Seen], share: f64) -> f64 {
    let mut firsts: Vec<f64> = seen.iter().map(|seen| seen.first.as_secs_f64() * 1e3).collect();
    firsts.sort_by(f64::total_cmp);
    firsts[((firsts.len() - 1) as f64 * share) as usize]
}

#[tokio::main]
async fn main() -> Result<()> {
    let served = Served::start()?;
    let idle = served.memory("VmRSS")?;
    crowd(&served, 1).await?;
    let (_, alone) = crowd(&served, 1).await?;
    let (seen, all) = crowd(&served, CLIENTS).await?;
    let whole = seen.iter().filter(|seen| seen.status == 200 && seen.whole).count();
    let rate = |clients: usize, time: Duration| clients as f64 * f64::from(TOKENS) / time.as_secs_f64();
    println!(
        "{CLIENTS} streams of {TOKENS} tokens: {whole} whole, {} failed, in {:.2} s",
        CLIENTS - whole,
        all.as_secs_f64()
    );
    println!("  first token: p50 {:.0} ms, p99 {:.0} ms", percentile(&seen, 0.5), percentile(&seen, 0.99));
    let (many, one) = (rate(CLIENTS, all), rate(1, alone));
    println!("  tokens/s: {many:.0} together, {one:.0} alone, ratio {:.2}", many / one);
    let (now, peak) = (served.memory("VmRSS")?, served.memory("VmHWM")?);
    println!("  memory of the server: {idle:.0} MiB idle, {peak:.0} MiB at most, {now:.0} MiB after");
    let (seen, _) = crowd(&served, CROWD).await?;
    let whole = seen.iter().filter(|seen| seen.status == 200 && seen.whole).count();
    let refused = seen.iter().filter(|seen| seen.status == 429 && seen.retry_after).count();
    println!(
        "{CROWD} at once: {whole} whole, {refused} told 429 with Retry-After, {} else",
        CROWD - whole - refused
    );
    println!("  memory of the server: {:.0} MiB at most", served.memory("VmHWM")?);
    Ok(())
}
