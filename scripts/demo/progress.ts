import type { JobEvent } from './service.ts'

/** Shows a job's events: a progress bar on a terminal, else a line at each tenth. */
export function createProgress(out: NodeJS.WriteStream) {
  const latest: Record<string, number | string | null> = {}
  let tenth = -1

  const bar = (share: number, width = 28) =>
    `${'█'.repeat(Math.round(share * width))}${'░'.repeat(width - Math.round(share * width))}`
  const number = (name: string) => (typeof latest[name] === 'number' ? latest[name] : undefined)

  function line(): string {
    const share = number('progress') ?? 0
    const secondsLeft = number('seconds_left')
    return [
      `${bar(share)} ${String(Math.round(share * 100)).padStart(3)} %`,
      `step ${number('step') ?? 0}/${number('steps_total') ?? '?'}`,
      `loss ${number('loss')?.toFixed(3) ?? '–'}`,
      `${Math.round(number('tokens_per_second') ?? 0)} tokens/s`,
      secondsLeft === undefined ? 'time left unknown' : `${clock(secondsLeft)} left`,
    ].join('  ')
  }

  return {
    show(event: JobEvent): void {
      if (event.type === 'metrics' || event.type === 'progress') {
        Object.assign(latest, event.data)
        if (out.isTTY) out.write(`\r\x1b[K  ${line().slice(0, out.columns - 3)}`)
        else if (event.type === 'progress' && Math.floor((number('progress') ?? 0) * 10) > tenth) {
          tenth = Math.floor((number('progress') ?? 0) * 10)
          out.write(`  ${line()}\n`)
        }
        return
      }
      if (event.type === 'checkpoint') return
      out.write(`${out.isTTY ? '\r\x1b[K' : ''}  ${event.message}\n`)
    },
  }
}

/** Minutes:seconds. Rounds before splitting, or 59.6 s would read 0:00. */
function clock(seconds: number): string {
  const whole = Math.round(seconds)
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, '0')}`
}
