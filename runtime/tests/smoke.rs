//! tmp
use millstream_runtime::*;
use std::time::Duration;
struct Doubler {
    out: HoldOut<u64>,
}
impl Actor for Doubler {
    type Message = u64;
    fn handle(&mut self, m: u64, _c: &mut Ctx<'_>) {
        if m == 13 {
            panic!("thirteen")
        }
        self.out.send(m * 2);
    }
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go() {
    for compute in [false, true] {
        let mut g = GraphBuilder::new();
        let d = if compute { g.compute_seat::<u64>("d", "u", vec![]) } else { g.seat::<u64>("d", "u") };
        let input = g.inlet("in", &d, 8, |n: u64| n);
        let (out, outlet) = g.outlet("out", &d, 4);
        g.actor(d, move || Doubler { out: out.clone() });
        let running = live::start(g.finish().unwrap(), LiveOptions::default()).await.unwrap();
        input.offer(21).unwrap();
        assert_eq!(outlet.recv().await, Some(42));
        input.offer(13).unwrap();
        input.offer(1).unwrap();
        assert_eq!(outlet.recv().await, Some(2));
        println!("{:?}\n{:?}", running.seats(), running.lanes());
        for i in 0..8 {
            input.offer(100 + i).unwrap();
        }
        for i in 0..8 {
            assert_eq!(outlet.recv().await, Some(200 + 2 * i));
        }
        assert!(running.drain(Duration::from_secs(5)).await);
        println!("{:?}\n{:?} {:?}", running.seats(), running.lanes(), running.exited().await);
    }
}
