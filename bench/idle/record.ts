// The record of a run: docs/performance/idle.json.
import type { Topic } from '../../scripts/docs/performance.ts'
import { type Activity, coresOf } from './processes.ts'

export interface Phase {
  phase: string
  processes: Activity[]
}

export interface Result {
  seconds: number
  clients: number
  /** Load average of the machine before the start. */
  load: number
  tunery: { listening_s: number; answer_s: number; phases: Phase[] }
  peer: { answer_s: number; phases: Phase[] } | null
}

/** The most that all processes together may take of a core while nobody asks for anything, percent. */
const most_percent = 0.5

const isIdle = ({ phase }: Phase) => phase.includes('idle')
const mb = (value: number) => value.toFixed(0)

export function recordOf({ seconds, clients, load, tunery, peer }: Result, machine: string, date: string): Topic {
  const run = { machine, date, command: 'npm run bench -- idle' }
  const percentOf = (phase: Phase) => 100 * coresOf(phase.processes)
  const peerIdle = peer?.phases.filter(isIdle) ?? []
  const peerAt = (index: number) => peerIdle[Math.min(index, peerIdle.length - 1)]
  const pss = (phase: Phase | undefined) => phase?.processes.reduce((sum, { pss_mb }) => sum + pss_mb, 0) ?? 0
  return {
    title: 'Idle',
    about: [
      'What the service takes while nobody asks for anything, with the packaged base, counted by the kernel over ' +
        `${seconds} s for each process: processor time, and how often something woke one of its threads. After the ` +
        `start, after ${clients} clients for 10 s, and with a prepared trainer.`,
      ...(peer ? ['The peer is llama-server with the same weights and as many slots.'] : []),
    ],
    records: [
      ...tunery.phases.filter(isIdle).map((phase, index) => {
        const beside = peerAt(index)
        const percent = percentOf(phase)
        return {
          claim: `${phase.phase}: share of a core, all processes`,
          figure: `${percent.toFixed(2)} %`,
          ...(beside && { peer: `${percentOf(beside).toFixed(2)} %` }),
          target: `at most ${most_percent} %`,
          met: percent <= most_percent,
          ...run,
        }
      }),
      {
        claim: 'start of the server to its first answer',
        figure: `${tunery.answer_s.toFixed(1)} s`,
        ...(peer && { peer: `${peer.answer_s.toFixed(1)} s` }),
        note: `it listens after ${tunery.listening_s.toFixed(1)} s; load average before it ${load.toFixed(1)}`,
        ...run,
      },
      {
        claim: `memory right after ${clients} clients, all processes, shared pages counted once`,
        figure: `${mb(pss(tunery.phases.find((phase) => !isIdle(phase))))} MB`,
        ...(peer && { peer: `${mb(pss(peer.phases.find((phase) => !isIdle(phase))))} MB` }),
        ...run,
      },
    ],
    breakdowns: [
      {
        title: 'By process',
        ...run,
        head: ['when', 'process', 'of a core', 'wake-ups/s', 'threads', 'RSS', 'PSS'],
        rows: [...tunery.phases, ...(peer?.phases ?? [])].flatMap((phase) =>
          phase.processes.map(({ name, core, wakeups_per_s, threads, rss_mb, pss_mb }) => [
            phase.phase,
            `\`${name}\``,
            isIdle(phase) ? `${(100 * core).toFixed(3)} %` : '',
            isIdle(phase) ? wakeups_per_s.toFixed(1) : '',
            String(threads),
            `${mb(rss_mb)} MB`,
            `${mb(pss_mb)} MB`,
          ]),
        ),
      },
    ],
    bounds: [
      'Once a second the server looks at the queue, which finds work that another process recorded or whose time has ' +
        'come, at deliveries of webhooks, at usage and at quotas. With a claim for each kind of work, a sync of the ' +
        'disk after each and beats of the event loop it took 2.07 %, in the same hour on the same machine.',
    ],
  }
}
