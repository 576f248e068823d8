constants! {
    // What starts a call.
    LaunchUs = 4.43, "us", "GPU", "To start a kernel and to end it.", fitted(4.2, 0.2);
    LaunchOneThreadUs = 4.78, "us", "host", "What one thread takes to start the kernel of each of its GPUs; calls cannot follow each other faster.", fitted(5.2, 0.2);
    MessageCallUs = 0.718, "us", "host", "What a thread takes to enqueue one message of an alltoall.", fitted(0.75, 0.3);
    LaunchNetworkSimpleUs = 11.7, "us", "library, Simple", "More of that where messages are announced and flushed.", fitted(13.5, 0.3);
    LaunchRcclUs = 201.0, "us", "RCCL, Simple", "What RCCL takes more across nodes.", fitted(147.0, 0.3);

    // Hops inside an island.
    HopLlUs = 0.673, "us", "NVLink, xGMI, PCIe; LL", "A message of a few bytes.", fitted(0.65, 0.2);
    HopLlGrowth = 0.577, "", "NVLink, xGMI, PCIe; LL", "How much longer it takes with 4 KiB, when all threads take part.", fitted(0.6, 0.3);
    HopSimpleUs = 2.43, "us", "NVLink, xGMI, PCIe; Simple", "A message.", fitted(2.6, 0.3);
    StepNetworkLlUs = 1.65, "us", "library, LL", "The least a step of a ring takes that also crosses the network: a proxy posts it.", fitted(1.5, 0.3);
    StepNetworkSimpleUs = 4.73, "us", "library, Simple", "The same with Simple.", fitted(4.1, 0.3);
    NvlsUs = 19.5, "us", "NVSwitch", "A sum by the switch, however small.", fitted(20.7, 0.2);
    NvlsPerGpuUs = 1.07, "us", "NVSwitch", "What every GPU of the domain adds.", fitted(1.07, 0.3);

    // Hops across.
    HopInfiniBandUs = 9.52, "us", "InfiniBand", "A message with LL.", fitted(7.5, 0.3);
    HopRoceUs = 13.3, "us", "RoCE", "A message with LL.", fitted(9.0, 0.3);
    HopEfaUs = 26.5, "us", "EFA since p5, TCPXO", "A message with LL.", fitted(26.0, 0.3);
    HopEfaFirstUs = 74.5, "us", "EFA before", "A message with LL.", fitted(72.0, 0.3);
    HopSlingshotUs = 7.31, "us", "Slingshot", "A message with LL.", fitted(6.5, 0.3);
    HopSlingshotSimpleUs = 34.2, "us", "Slingshot", "A message with Simple: the receiver is asked first, and every line is flushed.", fitted(28.0, 0.3);
    HopTcpSimpleUs = 61.4, "us", "sockets", "A message with Simple.", fitted(50.0, 0.4);
    HopTcpUs = 23.2, "us", "sockets", "A message with LL.", fitted(20.0, 0.3);
    HopTcpxUs = 291.0, "us", "TCPX", "A message with LL.", fitted(385.0, 0.3);
    HopNetworkSimple = 1.29, "", "Simple", "A hop across with Simple, in hops with LL; LL128 is between.", fitted(1.5, 0.3);
    HopNetworkNvlsTree = 3.01, "", "NVLSTree", "A hop across with NVLSTree, in hops with LL.", fitted(2.25, 0.3);
    HopNetworkGrowth = 0.35, "", "LL", "How much longer a hop across takes with 4 KiB.", fitted(0.3, 0.4);
    RendezvousUs = 8.42, "us", "Slingshot", "More where a message is past the 2 KiB that are sent without asking.", fitted(7.5, 0.3);

    // What links inside carry of their line rate.
    NvlinkVolta = 0.828, "", "NVLink of Pascal and Volta", "Of the line rate.", fitted(0.83, 0.05);
    NvlinkAmpere = 0.731, "", "NVLink of Ampere", "Of the line rate.", fitted(0.75, 0.05);
    NvlinkHopper = 0.812, "", "NVLink of Hopper", "Of the line rate.", fitted(0.80, 0.05);
    NvlinkBlackwell = 0.754, "", "NVLink of Blackwell", "Of the line rate.", fitted(0.75, 0.05);
    NvlinkMesh = 0.936, "", "NVLink without switches", "What rings over direct links get of the ports' bandwidth.", fitted(0.93, 0.04);
    Xgmi = 0.713, "", "xGMI", "Of the line rate of a link.", fitted(0.73, 0.05);
    PciePeers = 0.506, "", "PCIe between data centre cards", "Of the line rate; they are on two sockets.", fitted(0.52, 0.15);
    PciePeersConsumer = 0.756, "", "PCIe between consumer cards", "Of the line rate.", fitted(0.75, 0.1);
    PciePeersBothWays = 0.889, "", "PCIe between cards", "Of that where both directions are busy.", fitted(0.86, 0.1);
    PcieHost = 0.708, "", "PCIe through host memory", "Of the line rate, one way.", fitted(0.70, 0.15);
    PcieHostBothWays = 0.44, "", "PCIe through host memory", "Of the line rate where both directions are busy; and what reaches a NIC from a card in a slot.", fitted(0.44, 0.15);
    PcieHostPair = 0.262, "", "PCIe through host memory", "The same with two GPUs, which share the slots' way to memory; and of copies.", fitted(0.26, 0.15);
    NvlsHopper = 0.691, "", "NVSwitch of Hopper", "What a sum by the switch gets of the line rate.", fitted(0.705, 0.05);
    NvlsBlackwell = 0.602, "", "NVSwitch of Blackwell", "What a sum by the switch gets of the line rate.", fitted(0.60, 0.05);
    NvlsRack = 0.485, "", "NVL72", "The same in a rack.", fitted(0.50, 0.05);
    Copy = 0.862, "", "copy engines", "What copies get of the line rate, of NVLink, xGMI and PCIe between peers.", fitted(0.86, 0.05);
    CopyHost = 0.38, "", "copy engines", "What copies get of PCIe through host memory.", fitted(0.42, 0.1);

    // What networks carry of their line rate.
    NetworkRdma = 0.951, "", "InfiniBand, RoCE, EFA, TCPXO; sockets that the host keeps up with", "Of the line rate.", fitted(0.96, 0.05);
    NetworkSlingshot = 0.91, "", "Slingshot", "Of the line rate.", fitted(0.92, 0.05);
    NetworkTcpx = 0.653, "", "TCPX", "Of the line rate.", fitted(0.62, 0.1);
    TcpGBps = 3.34, "GB/s", "sockets", "What a host copies through the sockets of a NIC.", fitted(3.8, 0.2);
    NicShared = 0.843, "", "NICs", "What is left where GPUs share NICs.", fitted(0.85, 0.1);
    RoceAlone = 0.669, "", "RoCE", "What one GPU with one NIC gets: two connections do not fill it.", fitted(0.69, 0.1);

    // Protocols.
    LlPart = 0.408, "", "LL", "What LL carries of links inside.", fitted(0.41, 0.15);
    LlFewLanes = 0.301, "", "LL", "What is left for all-gather and reduce-scatter, which get few lanes with it.", fitted(0.3, 0.3);
    Ll128Part = 0.613, "", "LL128", "What LL128 carries of links inside.", fitted(0.6, 0.2);
    LlLaneGBps = 1.3, "GB/s", "LL", "What a lane with LL carries across: a CPU looks at every flag.", fitted(1.3, 0.3);
    LlLaneChosenGBps = 4.9, "GB/s", "NCCL, LL", "What NCCL takes a lane with LL to carry between two nodes, a 39 GB/s of 8 lanes; half between more.", Origin::Nccl;
    LlLaneSlowGBps = 0.382, "GB/s", "LL on Slingshot and sockets", "The same where every message is copied or asked for.", fitted(0.35, 0.3);
    Ll128LaneGBps = 5.33, "GB/s", "LL128", "What a lane with LL128 carries across.", fitted(8.0, 0.3);
    TreeInside = 0.881, "", "trees", "What a tree inside a node gets of a ring's bandwidth.", fitted(0.85, 0.1);
    Fill = 0.623, "", "pipelines", "How well the filling of pipelines is hidden: 2 is the least for steps of equal length.", fitted(0.55, 0.3);
    FillRing = 0.144, "", "rings and messages across", "The same where steps follow each other around a ring across: they are a pipeline already.", fitted(0.15, 0.4);
    FillNvls = 0.831, "", "pipelines through switches", "The same where switches sum.", fitted(0.75, 0.3);

    // Caps of a lane.
    TreeLaneAmpereGBps = 22.7, "GB/s", "Volta and Ampere", "A tree's lane between two nodes; starts where NCCL puts it.", fitted(23.6, 0.08);
    TreeLaneHopperGBps = 44.7, "GB/s", "Hopper and Blackwell", "A tree's lane between two nodes; starts where NCCL puts it.", fitted(42.0, 0.08);
    TreeLaneMany = 0.56, "", "trees", "What is left between more nodes, where a lane adds what two children send.", Origin::Nccl;
    TreeSlingshotFar = 0.786, "", "trees on Slingshot", "What is left of the NICs with each level past 16 nodes: trees cross groups of the dragonfly.", fitted(0.8, 0.1);
    NvlsTreeLaneHopperGBps = 57.7, "GB/s", "Hopper", "An NVLSTree's lane between two nodes.", Origin::Nccl;
    NvlsTreeLaneBlackwellGBps = 96.0, "GB/s", "Blackwell", "An NVLSTree's lane between two nodes.", Origin::Nccl;
    NvlsTreeLaneMany = 0.8, "", "NVLSTree", "What is left between more nodes.", Origin::Nccl;
    MessageLaneGBps = 19.3, "GB/s", "messages, from Hopper", "What a lane of a message carries inside.", fitted(20.0, 0.2);
    MessageLaneAmpereGBps = 14.2, "GB/s", "messages, to Ampere", "What a lane of a message carries inside.", fitted(14.0, 0.15);
    MessageNetworkGBps = 15.3, "GB/s", "messages", "What a message across carries with one lane, from 64 ranks on.", fitted(15.3, 0.1);
    MessageNetworkFewGBps = 25.1, "GB/s", "messages, to Hopper", "The same with fewer ranks, when it has more lanes.", fitted(25.0, 0.1);
    MessageNetworkFewBlackwellGBps = 42.2, "GB/s", "messages, Blackwell", "The same.", fitted(39.5, 0.1);

    // All to all, and switches of the network.
    MessagesPart = 0.939, "", "messages", "What messages between pairs get of links with their own lanes, and alltoall of the network.", fitted(0.95, 0.05);
    AllToAllSlingshot = 0.553, "", "alltoall on Slingshot", "The same.", fitted(0.53, 0.1);
    AllToAllPeer = 0.49, "", "alltoall", "What every peer across adds, in hops with LL.", fitted(0.5, 0.3);
    MessageHops = 1.75, "", "messages", "Hops that a message across takes: it is asked for, and it is answered.", fitted(1.8, 0.2);
    CollnetDirect = 0.753, "", "SHARP", "What CollnetDirect gets of a node's NICs.", Origin::Set;
    CollnetChain = 0.689, "", "SHARP", "What CollnetChain gets of a node's NICs.", Origin::Set;

    // Where one thing ends and another begins.
    LlLaneBytes = 4096.0, "B", "LL", "What the threads of a lane hold: a hop takes it along.", Origin::Set;
    LanesInside = 24.0, "", "NVLink, xGMI", "Lanes inside an island, at most.", Origin::Nccl;
    LanesFew = 2.0, "", "PCIe; parts with LL", "The same through slots, and of an all-gather or a reduce-scatter with LL.", Origin::Nccl;
    LlMessageBytes = 16384.0, "B", "messages", "The longest message between a pair that goes with LL.", Origin::Nccl;
    FillBytes = 67108864.0, "B", "pipelines", "Bytes from which on steps are as long as buffers and grow no more.", Origin::Set;
    HostNorm = 1.5, "", "host", "How host and device add up: 1 is one after the other, and the more the more they overlap.", Origin::Set;
    MessageLaneBytes = 16777216.0, "B", "messages", "Bytes of a message for each lane it gets inside.", Origin::Set;
    MessageLanesLeast = 4.0, "", "messages", "Lanes it gets at least.", Origin::Set;
    MessageLanesMost = 32.0, "", "messages", "Lanes it gets at most.", Origin::Nccl;
    MessageOneLaneRanks = 64.0, "", "messages", "Ranks from which on a message across has one lane.", Origin::Nccl;
    TreeNearLevels = 4.0, "", "trees on Slingshot", "Levels of a tree that stay in a group of the dragonfly: 16 nodes.", Origin::Set;
    RendezvousBytes = 2048.0, "B", "Slingshot", "The longest message that is sent without asking.", Origin::Set;
    NvlsGpus = 5.0, "", "NVSwitch", "GPUs of a domain from which on switches sum sooner than rings do.", Origin::Set;

    // Hosts, and libraries on their cores: fitted by `examples/hosts.rs` on every second call of `bench/runs/*-peers-*`.
    HostMemoryGBps = 139.0, "GB/s", "hosts; fitted on bench/runs", "What the memory of 16 cores carries, reads and writes together; hosts of GPUs are taken to have four times that.", Origin::Set;
    LineUs = 0.112, "us", "Weft on cores; fitted on bench/runs", "A cache line from one core to another, as the one who waits for it is kept busy.", Origin::Set;
    SlotUs = 0.595, "us", "Weft on cores; fitted on bench/runs", "A message through a slot until it is seen.", Origin::Set;
    CoreGBps = 12.4, "GB/s", "cores; fitted on bench/runs", "What a core copies or reads of others' memory.", Origin::Set;
    ColdPart = 0.707, "", "cores; fitted on bench/runs", "What is left of that where buffers do not fit a core's own cache.", Origin::Set;
    MpiMessageUs = 0.7, "us", "Open MPI on cores; fitted on bench/runs", "A message, three quarters of it on the way.", Origin::Set;
    MpiGBps = 5.73, "GB/s", "Open MPI on cores; fitted on bench/runs", "What a core passes on through shared memory.", Origin::Set;
    TcpHopUs = 80.0, "us", "Gloo on cores; fitted on bench/runs", "A message over the loopback until a thread that slept sees it.", Origin::Set;
    TcpMessageUs = 240.0, "us", "Gloo on cores; fitted on bench/runs", "What a message takes of a core that its threads share.", Origin::Set;
    TcpCoreGBps = 1.44, "GB/s", "Gloo on cores; fitted on bench/runs", "What a core passes through a socket of the loopback.", Origin::Set;
}
