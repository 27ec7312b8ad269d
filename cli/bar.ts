/** A bar in place on a terminal, else a line at each tenth of the way. */
export function createBar(out: NodeJS.WriteStream) {
  const width = 28
  let tenth = -1
  const line = (share: number, text: string) => {
    const full = Math.round(Math.min(1, Math.max(0, share)) * width)
    return `${'█'.repeat(full)}${'░'.repeat(width - full)} ${String(Math.round(share * 100)).padStart(3)} %  ${text}`
  }
  return {
    show(share: number, text: string): void {
      if (out.isTTY) out.write(`\r\x1b[K  ${line(share, text).slice(0, out.columns - 3)}`)
      else if (Math.floor(share * 10) !== tenth) {
        tenth = Math.floor(share * 10)
        out.write(`  ${line(share, text)}\n`)
      }
    },
    say(text: string): void {
      out.write(`${out.isTTY ? '\r\x1b[K' : ''}  ${text}\n`)
    },
    end(): void {
      if (out.isTTY) out.write('\r\x1b[K')
    },
  }
}
