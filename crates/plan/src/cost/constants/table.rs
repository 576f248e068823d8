constants! {
    // Launch.
    LaunchUs = 4.31, "us", "GPU", "Starting and ending a kernel.", fitted(4.2, 0.2);
    LaunchOneThreadUs = 4.69, "us", "host", "Time of one thread to launch the kernel of each of its GPUs; limits the rate of calls.", fitted(5.2, 0.2);
    MessageCallUs = 0.731, "us", "host", "Time of a thread to enqueue one message of an all-to-all.", fitted(0.75, 0.3);
    LaunchNetworkSimpleUs = 11.8, "us", "library, Simple", "Added to a launch where messages are announced and flushed.", fitted(13.5, 0.3);
    LaunchRcclUs = 200.0, "us", "RCCL, Simple", "Added to a launch across nodes with RCCL.", fitted(147.0, 0.3);

    // Hops inside an island.
    HopLlUs = 0.67, "us", "NVLink, xGMI, PCIe; LL", "Latency of a message of a few bytes.", fitted(0.65, 0.2);
    HopLlGrowth = 0.584, "", "NVLink, xGMI, PCIe; LL", "Relative increase of the latency at 4 KiB, when all threads take part.", fitted(0.6, 0.3);
    HopSimpleUs = 2.65, "us", "NVLink, xGMI, PCIe; Simple", "Latency of a message.", fitted(2.6, 0.3);
    StepNetworkLlUs = 1.5, "us", "library, LL", "Minimum time of a step of a ring that also crosses the network: a proxy posts it.", fitted(1.5, 0.3);
    StepNetworkSimpleUs = 4.75, "us", "library, Simple", "The same with Simple.", fitted(4.1, 0.3);
    NvlsUs = 19.7, "us", "NVSwitch", "Latency of a reduction by the switch.", fitted(20.7, 0.2);
    NvlsPerGpuUs = 1.02, "us", "NVSwitch", "Added for every GPU of the domain.", fitted(1.07, 0.3);

    // Hops between islands.
    HopInfiniBandUs = 9.65, "us", "InfiniBand", "Latency of a message with LL.", fitted(7.5, 0.3);
    HopRoceUs = 13.4, "us", "RoCE", "Latency of a message with LL.", fitted(9.0, 0.3);
    HopEfaUs = 26.6, "us", "EFA since p5, TCPXO", "Latency of a message with LL.", fitted(26.0, 0.3);
    HopEfaFirstUs = 73.9, "us", "EFA before", "Latency of a message with LL.", fitted(72.0, 0.3);
    HopSlingshotUs = 6.8, "us", "Slingshot", "Latency of a message with LL.", fitted(6.5, 0.3);
    HopSlingshotSimpleUs = 37.2, "us", "Slingshot", "Latency of a message with Simple, which needs a rendezvous and flushes every line.", fitted(28.0, 0.3);
    HopTcpSimpleUs = 54.0, "us", "sockets", "Latency of a message with Simple.", fitted(50.0, 0.4);
    HopTcpUs = 22.5, "us", "sockets", "Latency of a message with LL.", fitted(20.0, 0.3);
    HopTcpxUs = 297.0, "us", "TCPX", "Latency of a message with LL.", fitted(385.0, 0.3);
    HopNetworkSimple = 1.27, "", "Simple", "Latency of a hop between islands with Simple, relative to LL; LL128 is in between.", fitted(1.5, 0.3);
    HopNetworkNvlsTree = 2.84, "", "NVLSTree", "Latency of a hop between islands with NVLSTree, relative to LL.", fitted(2.25, 0.3);
    HopNetworkGrowth = 0.308, "", "LL", "Relative increase of the latency of a hop between islands at 4 KiB.", fitted(0.3, 0.4);
    RendezvousUs = 8.39, "us", "Slingshot", "Added for a message above the eager limit of 2 KiB.", fitted(7.5, 0.3);

    // Fraction of the line rate of links inside an island.
    NvlinkVolta = 0.829, "", "NVLink of Pascal and Volta", "Fraction of the line rate.", fitted(0.83, 0.05);
    NvlinkAmpere = 0.733, "", "NVLink of Ampere", "Fraction of the line rate.", fitted(0.75, 0.05);
    NvlinkHopper = 0.806, "", "NVLink of Hopper", "Fraction of the line rate.", fitted(0.80, 0.05);
    NvlinkBlackwell = 0.752, "", "NVLink of Blackwell", "Fraction of the line rate.", fitted(0.75, 0.05);
    NvlinkMesh = 0.94, "", "NVLink without switches", "Fraction of the ports' bandwidth that rings over direct links get.", fitted(0.93, 0.04);
    Xgmi = 0.712, "", "xGMI", "Fraction of a link's line rate.", fitted(0.73, 0.05);
    PciePeers = 0.506, "", "PCIe between data centre cards", "Fraction of the line rate; the cards are on two sockets.", fitted(0.52, 0.15);
    PciePeersConsumer = 0.757, "", "PCIe between consumer cards", "Fraction of the line rate.", fitted(0.75, 0.1);
    PciePeersBothWays = 0.889, "", "PCIe between cards", "Fraction of that with both directions busy.", fitted(0.86, 0.1);
    PcieHost = 0.707, "", "PCIe through host memory", "Fraction of the line rate, one direction.", fitted(0.70, 0.15);
    PcieHostBothWays = 0.44, "", "PCIe through host memory", "Fraction of the line rate with both directions busy; also from a PCIe card to a NIC.", fitted(0.44, 0.15);
    PcieHostPair = 0.263, "", "PCIe through host memory", "The same with two GPUs, which share the slots' path to memory; also for copies.", fitted(0.26, 0.15);
    NvlsHopper = 0.706, "", "NVSwitch of Hopper", "Fraction of the line rate that a reduction by the switch gets.", fitted(0.705, 0.05);
    NvlsBlackwell = 0.6, "", "NVSwitch of Blackwell", "Fraction of the line rate that a reduction by the switch gets.", fitted(0.60, 0.05);
    NvlsRack = 0.503, "", "NVL72", "The same in a rack.", fitted(0.50, 0.05);
    Copy = 0.858, "", "copy engines", "Fraction of the line rate of NVLink, xGMI and PCIe between peers that copies get.", fitted(0.86, 0.05);
    CopyHost = 0.382, "", "copy engines", "Fraction of the line rate of PCIe through host memory that copies get.", fitted(0.42, 0.1);

    // Fraction of the line rate of networks.
    NetworkRdma = 0.955, "", "InfiniBand, RoCE, EFA, TCPXO; sockets that the host keeps up with", "Fraction of the line rate.", fitted(0.96, 0.05);
    NetworkSlingshot = 0.935, "", "Slingshot", "Fraction of the line rate.", fitted(0.92, 0.05);
    NetworkTcpx = 0.648, "", "TCPX", "Fraction of the line rate.", fitted(0.62, 0.1);
    TcpGBps = 3.19, "GB/s", "sockets", "Rate at which a host copies through the sockets of a NIC.", fitted(3.8, 0.2);
    NicShared = 0.889, "", "NICs", "Fraction left where GPUs share NICs.", fitted(0.85, 0.1);
    RoceAlone = 0.668, "", "RoCE", "Fraction that one GPU with one NIC gets: two connections do not fill it.", fitted(0.69, 0.1);

    // Protocols.
    LlPart = 0.407, "", "LL", "Fraction of the rate of links inside that LL carries.", fitted(0.41, 0.15);
    LlFewLanes = 0.302, "", "LL", "Fraction left for all-gather and reduce-scatter, which get few lanes with LL.", fitted(0.3, 0.3);
    Ll128Part = 0.62, "", "LL128", "Fraction of the rate of links inside that LL128 carries.", fitted(0.6, 0.2);
    LlLaneGBps = 1.3, "GB/s", "LL", "Rate of an LL lane between islands: a CPU polls every flag.", fitted(1.3, 0.3);
    LlLaneChosenGBps = 4.9, "GB/s", "NCCL, LL", "Rate that NCCL's tuner assumes for an LL lane between two nodes (39 GB/s for 8 lanes); half between more.", Origin::Nccl;
    LlLaneSlowGBps = 0.35, "GB/s", "LL on Slingshot and sockets", "The same where every message is copied or needs a rendezvous.", fitted(0.35, 0.3);
    Ll128LaneGBps = 5.87, "GB/s", "LL128", "Rate of an LL128 lane between islands.", fitted(8.0, 0.3);
    TreeInside = 0.879, "", "trees", "Fraction of a ring's bandwidth that a tree inside a node gets.", fitted(0.85, 0.1);
    Fill = 0.596, "", "pipelines", "Fraction of the pipeline fill that is not hidden: 2 is the minimum for steps of equal length.", fitted(0.55, 0.3);
    FillRing = 0.136, "", "rings and messages across", "The same where steps follow each other around a ring between islands, which is already a pipeline.", fitted(0.15, 0.4);
    FillNvls = 0.815, "", "pipelines through switches", "The same where switches reduce.", fitted(0.75, 0.3);

    // Maximum rates of lanes.
    TreeLaneAmpereGBps = 23.6, "GB/s", "Volta and Ampere", "Rate of a tree's lane between two nodes; the fit starts at NCCL's value.", fitted(23.6, 0.08);
    TreeLaneHopperGBps = 44.2, "GB/s", "Hopper and Blackwell", "Rate of a tree's lane between two nodes; the fit starts at NCCL's value.", fitted(42.0, 0.08);
    TreeLaneMany = 0.56, "", "trees", "Fraction left between more nodes, where a lane reduces the data of two children.", Origin::Nccl;
    TreeSlingshotFar = 0.782, "", "trees on Slingshot", "Fraction of the NICs' bandwidth left with each level past 16 nodes: trees cross groups of the dragonfly.", fitted(0.8, 0.1);
    NvlsTreeLaneHopperGBps = 57.7, "GB/s", "Hopper", "Rate of an NVLSTree's lane between two nodes.", Origin::Nccl;
    NvlsTreeLaneBlackwellGBps = 96.0, "GB/s", "Blackwell", "Rate of an NVLSTree's lane between two nodes.", Origin::Nccl;
    NvlsTreeLaneMany = 0.8, "", "NVLSTree", "Fraction left between more nodes.", Origin::Nccl;
    MessageLaneGBps = 19.3, "GB/s", "messages, from Hopper", "Rate of a message's lane inside an island.", fitted(20.0, 0.2);
    MessageLaneAmpereGBps = 14.2, "GB/s", "messages, to Ampere", "Rate of a message's lane inside an island.", fitted(14.0, 0.15);
    MessageNetworkGBps = 15.3, "GB/s", "messages", "Rate of a message between islands with one lane, from 64 ranks on.", fitted(15.3, 0.1);
    MessageNetworkFewGBps = 25.1, "GB/s", "messages, to Hopper", "The same with fewer ranks, where a message has more lanes.", fitted(25.0, 0.1);
    MessageNetworkFewBlackwellGBps = 42.3, "GB/s", "messages, Blackwell", "The same.", fitted(39.5, 0.1);

    // All-to-all, and reductions in the network.
    MessagesPart = 0.952, "", "messages", "Fraction of the links that messages between pairs get, and of the network that all-to-all gets.", fitted(0.95, 0.05);
    AllToAllSlingshot = 0.53, "", "all-to-all on Slingshot", "The same.", fitted(0.53, 0.1);
    AllToAllPeer = 0.465, "", "all-to-all", "Latency of every remote peer, in hops with LL.", fitted(0.5, 0.3);
    MessageHops = 1.84, "", "messages", "Hops of a message between islands: a request and a reply.", fitted(1.8, 0.2);
    CollnetDirect = 0.753, "", "SHARP", "Fraction of a node's NICs that CollnetDirect gets.", Origin::Set;
    CollnetChain = 0.689, "", "SHARP", "Fraction of a node's NICs that CollnetChain gets.", Origin::Set;

    // Thresholds.
    LlLaneBytes = 4096.0, "B", "LL", "Bytes that the threads of a lane hold: included in a hop.", Origin::Set;
    LanesInside = 24.0, "", "NVLink, xGMI", "Maximum number of lanes inside an island.", Origin::Nccl;
    LanesFew = 2.0, "", "PCIe; parts with LL", "The same over PCIe, and for an all-gather or reduce-scatter with LL.", Origin::Nccl;
    LlMessageBytes = 16384.0, "B", "messages", "Largest message between a pair that uses LL.", Origin::Nccl;
    FillBytes = 67108864.0, "B", "pipelines", "Size from which steps are as long as buffers and grow no further.", Origin::Set;
    HostNorm = 1.5, "", "host", "Exponent of the norm that combines host and device time: 1 adds them, larger values overlap them more.", Origin::Set;
    MessageLaneBytes = 16777216.0, "B", "messages", "Bytes of a message per lane inside an island.", Origin::Set;
    MessageLanesLeast = 4.0, "", "messages", "Minimum number of lanes of a message.", Origin::Set;
    MessageLanesMost = 32.0, "", "messages", "Maximum number of lanes of a message.", Origin::Nccl;
    MessageOneLaneRanks = 64.0, "", "messages", "Number of ranks from which a message between islands has one lane.", Origin::Nccl;
    TreeNearLevels = 4.0, "", "trees on Slingshot", "Levels of a tree within a group of the dragonfly: 16 nodes.", Origin::Set;
    RendezvousBytes = 2048.0, "B", "Slingshot", "Largest eager message.", Origin::Set;
    NvlsGpus = 5.0, "", "NVSwitch", "Domain size in GPUs from which NVLS is faster than rings.", Origin::Set;

    // Hosts, and CPU libraries: fitted by `examples/hosts.rs` on every second call of `bench/runs/*-peers-*`.
    HostMemoryGBps = 139.0, "GB/s", "hosts; fitted on bench/runs", "Memory bandwidth of 16 cores, reads and writes together; GPU hosts are assumed to have four times that.", Origin::Set;
    LineUs = 0.112, "us", "Weft on cores; fitted on bench/runs", "Latency of a cache line between cores, while the receiver polls.", Origin::Set;
    SlotUs = 0.595, "us", "Weft on cores; fitted on bench/runs", "Latency of a message through a slot.", Origin::Set;
    CoreGBps = 12.4, "GB/s", "cores; fitted on bench/runs", "Rate at which a core copies, or reads peers' memory.", Origin::Set;
    ColdPart = 0.707, "", "cores; fitted on bench/runs", "Fraction of that for buffers larger than a core's private cache.", Origin::Set;
    MpiMessageUs = 0.7, "us", "Open MPI on cores; fitted on bench/runs", "Cost of a message, three quarters of it latency.", Origin::Set;
    MpiGBps = 5.73, "GB/s", "Open MPI on cores; fitted on bench/runs", "Rate of a core through shared memory.", Origin::Set;
    TcpHopUs = 80.0, "us", "Gloo on cores; fitted on bench/runs", "Latency of a message over loopback to a sleeping thread.", Origin::Set;
    TcpMessageUs = 240.0, "us", "Gloo on cores; fitted on bench/runs", "Core time of a message, on a core that Gloo's threads share.", Origin::Set;
    TcpCoreGBps = 1.44, "GB/s", "Gloo on cores; fitted on bench/runs", "Rate of a core through a loopback socket.", Origin::Set;
}
