use inferometer::{check::check, fit::fit, record::{Measurement, Plan}};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let m = Measurement::read(a[1].as_ref()).unwrap();
    let plan = if a.len() > 2 { Plan::parse(a[2].as_ref(), &std::fs::read_to_string(&a[2]).unwrap()).unwrap() } else { m.plan.clone().unwrap() };
    let t = std::time::Instant::now();
    let p = fit(&m, &plan).unwrap();
    println!("fit {:?}", t.elapsed());
    println!("{}", p.to_toml());
    let t = std::time::Instant::now();
    let c = check(&m, &plan, &p).unwrap();
    println!("check {:?}", t.elapsed());
    for x in &c.cells {
        println!("{:?} {} x{} {:?} {:?} tot {:+.2} ttft {:?}/{:?} {:+.1} done {:?}/{:?}", x.phase, x.context_tokens, x.concurrency, x.role, x.status,
            x.error_percent.get("total_tok_s").unwrap_or(&f64::NAN), x.measured.ttft_ms, x.predicted.ttft_ms.map(|e| e.value.round()), x.error_percent.get("ttft_ms").unwrap_or(&f64::NAN), x.measured.completed, x.predicted.completed.map(|e| e.value));
    }
    println!("{}", serde_json::to_string_pretty(&c.summary).unwrap());
}
