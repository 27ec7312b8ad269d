// A real Ray cluster on this machine: a head and other nodes, each with its own processes, which can be killed at once,
// as when a machine loses its power.
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, existsSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { freePort } from '../../bench/support/free-port.ts'
import { root } from '../../lib/root.ts'
import { until } from './client.ts'

type Peer = 'ray' | 'ray-vllm'
/** The folder of Ray's programs; that with vLLM is also one without. */
function binOf(peer: Peer): string | undefined {
  const folders = [peer, 'ray-vllm'].map((name) => path.join(root, '.local/peers', name, 'bin'))
  return folders.find((folder) => existsSync(path.join(folder, 'ray')))
}

/** Options of a test that needs Ray: skipped, with what to do, where it is missing. */
const needs = (peer: Peer) => ({ skip: binOf(peer) ? false : `not installed: node scripts/setup.mjs --with ${peer}` })
export const rayTest = needs('ray')
/** The same with vLLM in Ray's Python. */
export const rayVllmTest = needs('ray-vllm')

export interface RayNode {
  /** In the environment of all of its processes, and of their children. */
  mark: string
  /** SIGKILL for all of its processes, those of jobs included. */
  kill(): Promise<void>
}

export interface RayCluster {
  /** The address of the dashboard and REST API. */
  url: string
  token: string | undefined
  /** Starts the head, or starts it again on the same ports: it knows nothing of before. */
  startHead(): Promise<RayNode>
  /** SIGKILL for the head that was started last. */
  killHead(): Promise<void>
  addNode(resources?: { cpus?: number; custom?: Record<string, number> }): Promise<RayNode>
  /** Ids of processes of a node, or of all, whose command line matches. */
  processes(command: RegExp, node?: RayNode): number[]
  stop(): Promise<void>
}

/** A port for Serve outside of the range from which the system gives ports to Ray's many connections. */
export async function freeServePort(): Promise<number> {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 10_000)
    const server = net.createServer().listen(port, '0.0.0.0')
    const isFree = await once(server, 'listening').then(
      () => true,
      () => false,
    )
    server.close()
    if (isFree) return port
  }
}

interface Options {
  /** 0 keeps jobs away from the head. */
  head_cpus?: number
  token?: string
  peer?: Peer
  /** Environment of all processes of the cluster. */
  environment?: Record<string, string>
}

export async function startRay({ head_cpus = 0, token, peer = 'ray', environment = {} }: Options = {}) {
  const bin = binOf(peer)!
  // Sockets have paths of at most 107 characters.
  const folder = mkdtempSync(path.join(os.tmpdir(), 'ray-'))
  const marks: string[] = []
  const [gcs, dashboard, client] = [await freePort(), await freePort(), await freePort()]
  const url = `http://127.0.0.1:${dashboard}`

  async function start(args: string[], cpus: number) {
    const mark = randomBytes(8).toString('hex')
    marks.push(mark)
    const env = {
      ...process.env,
      ...environment,
      PATH: `${bin}:${process.env.PATH}`,
      TEST_RAY_NODE: mark,
      RAY_USAGE_STATS_ENABLED: '0',
      // A node that lost its head ends soon, not after a minute.
      RAY_gcs_rpc_server_reconnect_timeout_s: '10',
      RAY_health_check_period_ms: '1000',
      RAY_health_check_timeout_ms: '2000',
      RAY_health_check_failure_threshold: '2',
      RAY_prestart_worker_first_driver: '0',
      RAY_AUTH_MODE: token ? 'token' : 'disabled',
      ...(token && { RAY_AUTH_TOKEN: token }),
    }
    // Each node has the same address: the ports that Ray does not choose by itself must differ.
    const options = [
      `--num-cpus=${cpus}`,
      '--num-gpus=0',
      `--dashboard-agent-listen-port=${await freePort()}`,
      `--dashboard-agent-grpc-port=${await freePort()}`,
      '--object-store-memory=80000000',
      '--disable-usage-stats',
    ]
    const log = path.join(folder, `${mark}.log`)
    const output = openSync(log, 'a')
    const child = spawn(path.join(bin, 'ray'), ['start', ...args, ...options, '--block'], {
      env,
      cwd: folder,
      stdio: ['ignore', output, output],
    })
    closeSync(output)
    child.on('error', () => {})
    const started = () => {
      if (child.exitCode !== null) throw new Error(`ray start ended: ${readFileSync(log, 'utf8').slice(-2000)}`)
    }
    return { mark, started, kill: () => killMarked(mark) }
  }

  async function nodes(): Promise<string[]> {
    const found = await fetch(`${url}/nodes?view=summary`, {
      headers: token ? { authorization: `Bearer ${token}` } : {},
    }).then(
      (answer) => answer.json() as Promise<{ data: { summary: { raylet: { state?: string; nodeId: string } }[] } }>,
      () => undefined,
    )
    const alive = found?.data?.summary?.filter(({ raylet }) => raylet.state === 'ALIVE') ?? []
    return alive.map(({ raylet }) => raylet.nodeId)
  }

  let current: RayNode | undefined
  const cluster: RayCluster = {
    url,
    token,
    killHead: async () => current?.kill(),
    async startHead() {
      const head = await start(
        [
          '--head',
          `--port=${gcs}`,
          `--dashboard-port=${dashboard}`,
          '--dashboard-host=127.0.0.1',
          `--ray-client-server-port=${client}`,
          `--temp-dir=${folder}`,
        ],
        head_cpus,
      )
      await until('the head of Ray to answer', async () => {
        head.started()
        return (await nodes()).length > 0
      })
      current = head
      return head
    },
    async addNode({ cpus = 1, custom = {} } = {}) {
      const before = await nodes()
      const node = await start([`--address=127.0.0.1:${gcs}`, `--resources=${JSON.stringify(custom)}`], cpus)
      await until('a node of Ray to join', async () => {
        node.started()
        return (await nodes()).some((id) => !before.includes(id))
      })
      return node
    },
    processes: (command, node) =>
      (node ? [node.mark] : marks).flatMap(marked).filter((pid) => command.test(commandOf(pid))),
    async stop() {
      for (const mark of marks) await killMarked(mark)
      rmSync(folder, { recursive: true, force: true })
    },
  }
  return cluster
}

/** Processes with this mark in their environment. */
function marked(mark: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        return readFileSync(`/proc/${pid}/environ`, 'latin1').includes(`TEST_RAY_NODE=${mark}`)
      } catch {
        return false
      }
    })
    .map(Number)
}

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')
  } catch {
    return ''
  }
}

/** Until none is left: a process may have started another in between. */
const killMarked = (mark: string) =>
  until('the processes of a node to end', () => {
    const pids = marked(mark)
    for (const pid of pids)
      try {
        process.kill(pid, 'SIGKILL')
      } catch {}
    return pids.length === 0
  }).then(() => {})
