// What the kernel counts of a process: processor time, context switches, memory, threads.
import { readdirSync, readFileSync } from 'node:fs'
import { descendants } from '../support/memory.ts'

export interface Snapshot {
  pid: number
  name: string
  /** Seconds. Of threads that run: in nanoseconds, where the ticks of the process would show nothing. */
  cpu_s: number
  /** A thread that gave up its core, so that something woke it later; and one that was made to give it up. */
  voluntary: number
  involuntary: number
  threads: number
  rss_mb: number
  /** Shared pages count in part. */
  pss_mb: number
}

function read(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

const number = (text: string, name: string) => Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(text)?.[1] ?? 0)

/** The process and all that it has started. */
export function snapshot(root: number): Snapshot[] {
  return [root, ...descendants(root)].flatMap((pid) => {
    const status = read(`/proc/${pid}/status`)
    if (!status) return []
    const memory = read(`/proc/${pid}/smaps_rollup`)
    let [cpu_s, voluntary, involuntary] = [0, 0, 0]
    for (const thread of readdirSync(`/proc/${pid}/task`)) {
      const task = `/proc/${pid}/task/${thread}`
      cpu_s += Number(read(`${task}/schedstat`).split(' ')[0]) / 1e9
      const switches = read(`${task}/status`)
      voluntary += number(switches, 'voluntary_ctxt_switches')
      involuntary += number(switches, 'nonvoluntary_ctxt_switches')
    }
    return {
      pid,
      name: nameOf(read(`/proc/${pid}/cmdline`).split('\0')),
      cpu_s,
      voluntary,
      involuntary,
      threads: number(status, 'Threads'),
      rss_mb: (1024 * number(status, 'VmRSS')) / 1e6,
      pss_mb: (1024 * number(memory, 'Pss')) / 1e6,
    }
  })
}

/** The program: of a script the script, of a module its name. */
function nameOf(command: readonly string[]): string {
  const script = command.find((word, index) => /\.(ts|mjs|py)$/.test(word) && command[index - 1] !== '--import')
  if (script) return script.split('/').slice(-2).join('/')
  const module = command.indexOf('-m')
  return module > 0 ? command[module + 1]! : (command[0]!.split('/').at(-1) ?? '')
}

export interface Activity {
  name: string
  /** Share of one core. */
  core: number
  wakeups_per_s: number
  involuntary_per_s: number
  threads: number
  rss_mb: number
  pss_mb: number
}

/** What processes did between two snapshots; one that started or ended in between counts with what it shows. */
export function between(before: readonly Snapshot[], after: readonly Snapshot[], seconds: number): Activity[] {
  return after.map((now) => {
    const then = before.find(({ pid }) => pid === now.pid)
    return {
      name: now.name,
      core: (now.cpu_s - (then?.cpu_s ?? 0)) / seconds,
      wakeups_per_s: (now.voluntary - (then?.voluntary ?? 0)) / seconds,
      involuntary_per_s: (now.involuntary - (then?.involuntary ?? 0)) / seconds,
      threads: now.threads,
      rss_mb: now.rss_mb,
      pss_mb: now.pss_mb,
    }
  })
}

export const coresOf = (activities: readonly Activity[]): number => activities.reduce((sum, { core }) => sum + core, 0)
