// Made from the OpenAPI document by scripts/generate_api_types.py: edit the models of the server instead.

export interface AccountView {
    tenant: string;
    key_id: string;
    scopes: string[];
    expires_at: string | null;
}

export interface AlertsView {
    memory: number;
    disk: number;
    processes: number;
    cpu: number;
}

export interface ArchiveView {
    path: string;
    members: number;
}

export interface ArtifactPage {
    artifacts: ArtifactView[];
    next: string | null;
}

export interface ArtifactView {
    artifact_id: string;
    name: string;
    path: string | null;
    size: number;
    sha256: string;
    mime_type: string;
    session_id: string;
    thread_id: string | null;
    created_at: string;
    expires_at: string;
    url: string;
}

export interface BuildBody {
    environment?: string;
    image?: string;
}

export interface BuildList {
    worker: string;
    builds: BuildView[];
}

export interface BuildView {
    image: string;
    state: string;
    step: string;
    fraction: number | null;
    started_at: string;
    ended_at: string | null;
    lines: string[];
}

export interface CallerView {
    tenant: string;
    key_id: string;
    scopes: string[];
    quota: Record<string, unknown>;
    key_quota: Record<string, unknown>;
}

export interface CheckView {
    name: string;
    level: string;
    found: string;
    remedy: string;
}

export interface ChunkView {
    stream: string;
    offset: number;
    next_offset: number;
    encoding: string;
    data: string;
}

export interface ClusterView {
    coordinator: string;
    redis: string;
    settled: boolean;
    workers: WorkerView[];
}

export interface CodeBody {
    code: string;
    language?: string;
    context?: string;
    timeout_s?: number | null;
    env?: Record<string, string>;
    stream?: boolean;
    save_artifacts?: string[];
    save_results?: boolean;
}

export interface CodeErrorView {
    name: string;
    value: string;
    traceback: string;
}

export interface ContextBody {
    language?: string;
    cwd?: string;
    env?: Record<string, string>;
    idle_timeout_s?: number | null;
}

export interface ContextList {
    contexts: ContextView[];
}

export interface ContextView {
    id: string;
    language: string;
    state: string;
    cwd: string;
    version: string;
    default: boolean;
    started_s_ago: number;
    lost_reason?: string | null;
}

export interface CopyBody {
    name: string;
}

export interface CreateBody {
    environment?: string;
    thread_id?: string;
    image?: string;
    provider?: string;
    labels?: Record<string, string>;
    limits?: LimitsBody | null;
    require?: ("user_namespace" | "pid_namespace" | "mount_namespace" | "network_namespace" | "ipc_namespace" | "uts_namespace" | "cgroup_namespace" | "unique_uid" | "no_host_root" | "capabilities" | "no_new_privs" | "seccomp" | "system_calls" | "read_only_root" | "masked_paths" | "mount_flags" | "no_host_files" | "loopback_only" | "no_network" | "memory_limit" | "swap_off" | "socket_limit" | "cpu_limit" | "pids_limit" | "rlimits" | "disk_limit" | "inode_limit" | "guest_kernel")[];
    network?: NetworkBody | null;
    secrets?: string[];
    gpus?: number | string[] | null;
    env?: Record<string, string>;
    metadata?: Record<string, string>;
    idle_timeout_s?: number | null;
    max_lifetime_s?: number | null;
    on_idle?: "end" | "pause" | "hibernate" | null;
    max_paused_s?: number | null;
    auto_resume?: boolean;
    snapshot?: string;
    replace_lost?: boolean;
    agent_config?: string | Record<string, unknown>;
    on_mismatch?: "keep" | "replace" | "error";
    logs?: string;
    volumes?: VolumeBody[];
    exec?: ExecBody | null;
}

export interface DeedPage {
    deeds: DeedView[];
    next: string | null;
}

export interface DeedView {
    at: string;
    action: string;
    tenant: string;
    key_id: string;
    client: string;
    request_id: string;
    session_id: string;
    status: number;
    result: string;
    duration_ms: number;
    detail: Record<string, unknown>;
}

export interface DeliveryList {
    deliveries: DeliveryView[];
}

export interface DeliveryView {
    id: string;
    message_id: string;
    type: string;
    state: string;
    attempts: number;
    created_at: string;
    attempted_at: string | null;
    next_attempt_at: string | null;
    status: number | null;
    error: string;
}

export interface DemandView {
    wanted: number;
    reason: string;
    workers: number;
    sessions: number;
    capacity: number;
    waiting: number;
    load: number;
    may_stop: string[];
}

export interface DoctorView {
    worker: string;
    at: string;
    counts: Record<string, number>;
    checks: CheckView[];
    attack: Record<string, unknown> | null;
}

export interface DrainBody {
    draining: boolean;
}

export interface DroppedView {
    text: number;
    events: number;
}

export interface EntryLine {
    name: string;
    description: string;
}

export interface EntryLines {
    kind: string;
    entries: EntryLine[];
}

export interface EntryView {
    name: string;
    description: string;
    [name: string]: unknown;
}

export interface EnvironmentList {
    environments: EnvironmentView[];
}

export interface EnvironmentView {
    name: string;
    description: string;
    image: string;
    provider: string | null;
    limits: LimitsView;
    io: IoView;
    env_names: string[];
    idle_timeout_s: number | null;
    max_lifetime_s: number | null;
    on_idle: "end" | "pause" | "hibernate" | null;
    max_paused_s: number | null;
    needs: string[];
    secrets: string[];
    gpus: string[];
    network: NetworkView;
    root: "read-only" | "writable";
    sudo: boolean;
    contexts: string[];
    volumes: WishedVolumeView[];
    alerts: AlertsView;
    default: boolean;
    image_state: "ready" | "missing" | "outdated" | "building" | null;
}

export interface ExecBody {
    command: string | string[];
    cwd?: string;
    env?: Record<string, string>;
    user?: string;
    timeout_s?: number | null;
    carry_state?: boolean;
    keep_bytes?: number | null;
    stdin?: string;
    stdin_base64?: string;
    stdin_path?: string;
    stream?: boolean;
    save_artifacts?: string[];
}

export interface ExecView {
    exit_code: number;
    output: string;
    stdout: string;
    stderr: string;
    stdout_base64: string;
    stderr_base64: string;
    reason: string;
    signal: number | null;
    duration_ms: number;
    cpu_ms: number;
    bytes_total: number;
    truncated: boolean;
    killed: number;
    survivors: number;
    background: number;
    process_id: string;
    saved?: SavedView | null;
}

export interface ExecutionView {
    id: string;
    context_id: string;
    language: string;
    results: Record<string, unknown>[];
    logs: LogsView;
    error: CodeErrorView | null;
    execution_count: number | null;
    reason: string;
    context_lost: string | null;
    duration_ms: number;
    truncated: boolean;
    dropped: DroppedView;
    saved?: SavedView | null;
}

export interface FigureLimitsView {
    cpus: number;
    memory_bytes: number;
    disk_bytes: number;
    processes: number;
}

export interface FiguresPage {
    metrics: Record<string, LatestFiguresView>;
}

export interface FiguresView {
    at: string;
    cpu_s: number;
    cpus: number;
    memory_bytes: number;
    cache_bytes: number;
    disk_bytes: number;
    processes: number;
    sent_bytes: number;
    received_bytes: number;
}

export interface FileList {
    path: string;
    files: FileView[];
}

export interface FileView {
    path: string;
    name: string;
    kind: string;
    size: number;
    mode: string;
    uid: number;
    gid: number;
    modified: string;
    target: string | null;
}

export interface FirstCommandView {
    result: ExecView | null;
    error: Record<string, string> | null;
}

export interface ForkBody {
    count?: number;
    thread_ids?: string[];
    metadata?: Record<string, string>;
}

export interface ForkError {
    number: number;
    code: string;
    detail: string;
    remedy: string;
}

export interface ForkView {
    sessions: SessionView[];
    errors: ForkError[];
    carried: string;
}

export interface FoundView {
    matches: MatchView[];
    summary: SummaryView;
}

export interface HistoryView {
    process: string;
    interval_s: number;
    first_at: string;
    columns: Record<string, (number | null)[]>;
    pools: Record<string, Record<string, (number | null)[]>>;
}

export interface ImageList {
    images: ImageView[];
}

export interface ImageView {
    name: string;
    version: string;
    size_bytes: number;
    files: number;
    created_at: string;
}

export interface IoView {
    mbps: number;
    iops: number;
}

export interface KeyBody {
    name: string;
    tenant?: string;
    scopes?: string[];
    expires_in_s?: number | null;
    quota?: Record<string, unknown>;
}

export interface KeyList {
    keys: KeyView[];
}

export interface KeyView {
    id: string;
    name: string;
    tenant: string;
    scopes: string[];
    created_at: string;
    expires_at: string | null;
    used_at: string | null;
    old_until: string | null;
    quota: Record<string, unknown>;
}

export interface KillBody {
    grace_s?: number;
}

export interface KilledView {
    killed: number;
}

export interface LatestFiguresView {
    limits: FigureLimitsView;
    now: FiguresView;
}

export interface LeftOutView {
    path: string;
    why: string;
}

export interface LimitsBody {
    memory_mb?: number | null;
    cpus?: number | null;
    pids?: number | null;
    disk_mb?: number | null;
    open_files?: number | null;
}

export interface LimitsView {
    memory_mb: number;
    cpus: number;
    pids: number;
    disk_mb: number;
    open_files: number;
}

export interface LinkBody {
    port: number;
    expires_s?: number;
    host_header?: "" | "localhost";
    by_path?: boolean;
}

export interface LogEntryView {
    id: number;
    at: string;
    kind: string;
    event?: string | null;
    command_id?: string | null;
    process_id?: string | null;
    command?: string | null;
    cwd?: string | null;
    user?: string | null;
    key_id?: string | null;
    background?: boolean | null;
    context_id?: string | null;
    language?: string | null;
    exit_code?: number | null;
    reason?: string | null;
    signal?: number | null;
    duration_ms?: number | null;
    cpu_ms?: number | null;
    bytes_total?: number | null;
    execution_count?: number | null;
    error?: string | null;
    detail?: string | null;
    stream?: string | null;
    text?: string | null;
    missing?: number | null;
    until?: number | null;
}

export interface LogView {
    session_id: string;
    level: string;
    entries: LogEntryView[];
    next: number;
    more: boolean;
    ended: boolean;
    bytes: number;
    expires_at: string | null;
    hint?: string | null;
}

export interface LogsView {
    stdout: string[];
    stderr: string[];
}

export interface MatchView {
    path: string;
    kind: string;
    line: number;
    column: number;
    text: string;
    text_truncated: boolean;
}

export interface MetricsView {
    limits: FigureLimitsView;
    now: FiguresView;
    session_id: string;
    interval_s: number;
    series: FiguresView[];
}

export interface MismatchView {
    has: unknown;
    asked: unknown;
}

export interface MoveBody {
    source: string;
    target: string;
    user?: string;
}

export interface NetworkBody {
    internet?: boolean;
    allow?: string[];
    deny?: string[];
}

export interface NetworkUseView {
    internet: boolean;
    allow: string[];
    deny: string[];
    bytes_sent: number;
    bytes_received: number;
    connections: number;
    open_connections: number;
    refused: number;
    refusals: RefusalView[];
}

export interface NetworkView {
    internet: boolean;
    allow: string[];
    deny: string[];
}

export interface NewKeyView {
    id: string;
    name: string;
    tenant: string;
    scopes: string[];
    created_at: string;
    expires_at: string | null;
    used_at: string | null;
    old_until: string | null;
    quota: Record<string, unknown>;
    key: string;
}

export interface NewVolumeBody {
    name: string;
    size_mb?: number | null;
    metadata?: Record<string, string>;
}

export interface NewWebhookView {
    id: string;
    url: string;
    events: string[];
    description: string;
    created_at: string;
    disabled: string | null;
    secret: string;
}

export interface OutputView {
    chunks: ChunkView[];
    next_offset: number;
    running: boolean;
}

export interface PageFacts {
    version: string;
    cluster: boolean;
    mode: "keys" | "open";
    account: AccountView | null;
}

export interface PatchBody {
    idle_timeout_s?: number | null;
    max_lifetime_s?: number | null;
    metadata?: Record<string, string | null> | null;
}

export interface PathBody {
    path: string;
    mode?: number;
    exist_ok?: boolean;
    user?: string;
}

export interface PathView {
    path: string;
}

export interface PauseBody {
    max_paused_s?: number | null;
    auto_resume?: boolean | null;
    to_disk?: boolean;
}

export interface PingView {
    delivered: boolean;
    status: number | null;
    error: string;
}

export interface PortBody {
    public?: boolean | null;
    host_header?: "" | "localhost" | null;
}

export interface PortList {
    ports: PortView[];
}

export interface PortRulesView {
    port: number;
    public: boolean;
    host_header: string;
}

export interface PortView {
    port: number;
    address: string;
    public?: boolean;
}

export interface PreviewLinkView {
    url: string;
    token: string;
    port: number;
    expires_at: string;
}

export interface PreviousView {
    session_id: string;
    reason: string;
    detail: string;
}

export interface Problem {
    type: string;
    title: string;
    status: number;
    code: string;
    detail: string;
    remedy?: string;
    retryable: boolean;
    instance?: string;
    error_id?: string;
    errors?: { field: string; message: string }[];
}

export interface ProcessBody {
    command: string | string[];
    cwd?: string;
    env?: Record<string, string>;
    user?: string;
    timeout_s?: number | null;
    carry_state?: boolean;
    keep_bytes?: number | null;
    process_id?: string;
    terminal?: TerminalBody | null;
}

export interface ProcessList {
    processes: ProcessView[];
}

export interface ProcessView {
    process_id: string;
    command: string;
    user: string;
    running: boolean;
    terminal: boolean;
    bytes_total: number;
    truncated: boolean;
    started_s_ago: number;
    exit_code: number | null;
    reason: string | null;
    background: number;
}

export interface QuotaTable {
    tenant: string;
    key_id: string;
    day_ends_at: string;
    quotas: QuotaView[];
}

export interface QuotaView {
    name: string;
    of: string;
    per: string;
    bound: number | null;
    used: number | null;
}

export interface RedeemBody {
    ticket: string;
}

export interface RedeemedView {
    token: string;
    session_id: string;
    process_id: string;
    read_only: boolean;
    expires_at: string;
}

export interface RefusalView {
    at: string;
    name: string;
    address: string;
    port: number;
    reason: string;
    rule: string;
    count?: number;
}

export interface RenderBody {
    variables?: Record<string, string>;
}

export interface RenderedView {
    name: string;
    text: string;
}

export interface RevocationBody {
    token_id?: string;
    subject?: string;
    kept_s?: number;
}

export interface RevocationList {
    revocations: RevocationView[];
}

export interface RevocationView {
    id: string;
    token_id: string;
    subject: string;
    made_at: string;
    kept_until: string;
}

export interface RevokedView {
    generation: number;
}

export interface SaveBody {
    paths: string[];
}

export interface SavedAtEndView {
    saved: number;
    bytes: number;
    left_out_count: number;
    left_out: LeftOutView[];
}

export interface SavedView {
    artifacts: ArtifactView[];
    left_out: LeftOutView[];
    left_out_count: number;
}

export interface SecretBody {
    value: string;
    hosts: string[];
    header?: string;
    query?: string;
    format?: string;
    kind?: string;
    path?: string;
    scrub?: boolean;
    expires_in_s?: number | null;
}

export interface SecretList {
    secrets: SecretView[];
}

export interface SecretView {
    name: string;
    tenant: string;
    hosts: string[];
    header: string | null;
    query: string | null;
    format: string;
    kind: string | null;
    path: string;
    scrub: boolean;
    expires_at: string | null;
    created_at: string;
    changed_at: string;
}

export interface SessionPage {
    sessions: SessionView[];
    next: string | null;
}

export type SessionState = "creating" | "running" | "paused" | "hibernated" | "lost" | "stopping" | "ended";

export interface SessionView {
    session_id: string;
    tenant: string;
    state: SessionState;
    environment: string;
    thread_id: string | null;
    sandbox_id: string | null;
    provider: string | null;
    worker: string | null;
    user: string;
    workspace: string;
    created_at: string;
    expires_at: string | null;
    idle_expires_at: string | null;
    idle_timeout_s: number;
    max_lifetime_s: number;
    on_idle: "end" | "pause" | "hibernate";
    paused_at: string | null;
    max_paused_s: number;
    auto_resume: boolean;
    restored: number;
    limits: LimitsView | null;
    pooled: boolean;
    image: string | null;
    metadata: Record<string, string>;
    env_names: string[];
    network: NetworkView;
    secrets: string[];
    agent: string | null;
    agent_config: Record<string, unknown> | null;
    gpus: string[];
    volumes: VolumeMountView[];
    previous: PreviousView | null;
    artifacts?: SavedAtEndView | null;
    snapshot?: string | null;
    forked_from?: string | null;
    logs: string;
    reason: string | null;
    detail: string | null;
    url: string;
    isolation?: Record<string, unknown> | null;
    created?: boolean | null;
    worker_url?: string | null;
    mismatch?: Record<string, MismatchView> | null;
    exec?: FirstCommandView | null;
}

export interface SignInBody {
    key?: string;
    code?: string;
}

export interface SignInLinkView {
    url: string;
    expires_at: string | null;
}

export interface SignalBody {
    signal: string | number;
}

export interface SignedInView {
    tenant: string;
    key_id: string;
    scopes: string[];
    expires_at: string | null;
    cookie: boolean;
}

export interface SnapshotBody {
    name?: string;
    expires_in_s?: number | null;
    metadata?: Record<string, string>;
    public?: boolean;
}

export interface SnapshotPage {
    snapshots: SnapshotView[];
    next: string | null;
}

export interface SnapshotView {
    snapshot_id: string;
    name: string | null;
    environment: string;
    image: string;
    provider: string;
    writable_root: boolean;
    disk_mb: number;
    bytes: number;
    sha256: string;
    stopped_ms: number;
    session_id: string | null;
    thread_id: string | null;
    parent: string | null;
    worker: string | null;
    owner: string;
    public: boolean;
    metadata: Record<string, string>;
    created_at: string;
    expires_at: string | null;
    url: string;
}

export interface StatsView {
    sessions: Record<string, number>;
    workers: Record<string, Record<string, unknown>>;
}

export interface StdinBody {
    data?: string;
    data_base64?: string;
    close?: boolean;
}

export interface SummaryView {
    matches: number;
    files_searched: number;
    binary: number;
    too_large: number;
    unreadable: number;
    hidden: number;
    long_lines: number;
    truncated_by: string | null;
}

export interface TenantBody {
    quota?: Record<string, unknown>;
    policy?: Record<string, unknown>;
    logs?: string;
}

export interface TenantList {
    tenants: TenantView[];
}

export interface TenantView {
    name: string;
    quota: Record<string, unknown>;
    policy: Record<string, unknown>;
    logs: string;
}

export interface TerminalBody {
    rows?: number;
    columns?: number;
}

export interface TicketBody {
    kind?: "terminal";
    process_id?: string;
    read_only?: boolean;
    expires_in_s?: number;
    origins?: string[];
}

export interface TicketView {
    ticket: string;
    expires_at: string;
    url: string;
}

export interface UsageFigures {
    sessions: number;
    commands: number;
    cpu_s: number;
    memory_mb_s: number;
    session_s: number;
    exec_s: number;
    bytes_in: number;
    bytes_out: number;
    egress_bytes: number;
    egress_connections: number;
    egress_refused: number;
}

export interface UsageRow {
    sessions: number;
    commands: number;
    cpu_s: number;
    memory_mb_s: number;
    session_s: number;
    exec_s: number;
    bytes_in: number;
    bytes_out: number;
    egress_bytes: number;
    egress_connections: number;
    egress_refused: number;
    day: string;
    tenant: string;
}

export interface UsageTable {
    first: string;
    last: string;
    usage: UsageRow[];
    total: UsageFigures;
    artifact_bytes: number;
    snapshot_bytes: number;
    volumes_mb: number;
}

export interface VolumeBody {
    name: string;
    path: string;
    read_only?: boolean;
    size_mb?: number | null;
}

export interface VolumeMountView {
    volume_id: string;
    name: string;
    path: string;
    read_only: boolean;
}

export interface VolumePage {
    volumes: VolumeView[];
    next: string | null;
}

export interface VolumePatchBody {
    size_mb?: number | null;
    metadata?: Record<string, string | null> | null;
}

export interface VolumeView {
    volume_id: string;
    name: string;
    size_mb: number;
    created_at: string;
    metadata: Record<string, string>;
    worker: string | null;
    used_bytes?: number | null;
    sessions?: string[] | null;
}

export interface WebhookBody {
    url: string;
    events?: string[];
    description?: string;
}

export interface WebhookList {
    webhooks: WebhookView[];
}

export interface WebhookView {
    id: string;
    url: string;
    events: string[];
    description: string;
    created_at: string;
    disabled: string | null;
}

export interface WishedVolumeView {
    name: string;
    path: string;
    read_only: boolean;
    size_mb: number | null;
}

export interface WorkerView {
    id: string;
    state: string;
    address: string;
    version: string;
    protocol: number;
    provider: string;
    labels: Record<string, string>;
    sessions: number;
    capacity: number;
    pressure: number;
    memory: number;
    ready: Record<string, number>;
    waiting: number;
    epoch: number;
    lease_left_s: number;
}
