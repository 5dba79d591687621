// What the API gives, as far as several pages use it.

export interface Limits {
    memory_mb: number;
    cpus: number;
    pids: number;
    disk_mb: number;
    open_files: number;
}

export interface Session {
    session_id: string;
    state: string;
    environment: string;
    thread_id: string | null;
    sandbox_id: string | null;
    provider: string | null;
    worker: string | null;
    tenant?: string;
    user: string;
    workspace: string;
    created_at: string;
    expires_at: string | null;
    idle_expires_at: string | null;
    idle_timeout_s: number;
    max_lifetime_s: number;
    limits: Limits | null;
    pooled: boolean;
    image: string | null;
    metadata: Record<string, string>;
    env_names: string[];
    network: any;
    secrets: string[];
    agent: string | null;
    gpus: string[];
    reason: string | null;
    detail: string | null;
    isolation?: Record<string, any> | null;
}

/** What a session can be made of. */
export interface Environment {
    name: string;
    description: string;
    image: string;
    provider: string | null;
    limits: Limits;
    idle_timeout_s: number | null;
    max_lifetime_s: number | null;
    needs: string[];
    secrets: string[];
    gpus: string[];
    root: string;
    sudo: boolean;
    network: { internet: boolean; allow: string[]; deny: string[] };
    default: boolean;
    image_state: string | null;
}

export interface SessionPage {
    sessions: Session[];
    next: string | null;
}

/** One point of what a session uses. */
export interface Figures {
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

export interface FigureLimits {
    cpus: number;
    memory_bytes: number;
    disk_bytes: number;
    processes: number;
}

export interface SessionMetrics {
    session_id: string;
    interval_s: number;
    limits: FigureLimits;
    now: Figures;
    series: Figures[];
}

export interface ProcessInfo {
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

export interface FileInfo {
    path: string;
    name: string;
    kind: string; // file, directory, symlink or other
    size: number;
    mode: string;
    uid: number;
    gid: number;
    modified: string;
    target: string | null;
}
