use super::*;

#[test]
fn requests_are_checked() {
    let mut r = Request::new(Collective::Broadcast { root: 4 }, 4, 1);
    assert!(r.check().unwrap_err().to_string().contains("root is \"4\""));
    r.collective = Collective::AllReduce;
    r.orders[0] = vec![0, 1, 1, 3];
    assert!(r.check().unwrap_err().to_string().contains("[0, 1, 1, 3]"));
    assert!(
        build("rng", &Request::new(Collective::AllReduce, 2, 1)).unwrap_err().to_string().contains("ring")
    );
    let e = build("one_shot", &Request::new(Collective::AllGather, 2, 1)).unwrap_err().to_string();
    assert!(e.contains("use ring or direct"), "{e}");
}

#[test]
fn a_two_rank_ring_reads_as_expected() {
    let s = build("ring", &Request::new(Collective::AllReduce, 2, 1)).unwrap();
    insta::assert_snapshot!(s.to_string(), @r"
    ring all_reduce on 2 ranks, 1 channels
      chunk 0: block 0 [0..1)/2
      chunk 1: block 0 [1..2)/2
      rank 0 worker 0 (channel 0, Relay)
        copy chunk 1: input => link 0 (0->1)
        finish chunk 0: link 1 (1->0) + input => output, peer link 0 (0->1)
        copy chunk 1: peer link 1 (1->0) => output
      rank 1 worker 0 (channel 0, Relay)
        copy chunk 0: input => link 1 (1->0)
        finish chunk 1: link 0 (0->1) + input => output, peer link 1 (1->0)
        copy chunk 0: peer link 0 (0->1) => output
    ");
}
