// The form in which llama-server is fastest at a load on this machine: a short search before it is compared with.
import { type PeerForm, type PeerOptions, peerWeights, type Side, startLlamaServer, threads } from './servers.ts'

/** What is tried besides the form that it starts in, one field after the other. */
function alternatives(): { [Field in keyof PeerForm]: PeerForm[Field][] } {
  return {
    weights: peerWeights().slice(1),
    threads: [...new Set([threads - 1, Math.round(threads / 2)])].filter((count) => count >= 1 && count < threads),
    flash_attention: ['off'],
    ubatch: [128, 2048],
  }
}

const firstForm = (): PeerForm => ({ weights: peerWeights()[0]!, threads, flash_attention: 'on', ubatch: 512 })

export interface BestPeer {
  them: Side
  /** The form that was chosen, and the figure of each that was tried. */
  note: string
}

/**
 * Starts llama-server in the form with the highest figure. `measureOnce` is a short turn of the load; the second of two
 * turns counts. `fixed`: fields that the comparison prescribes.
 */
export async function startBestPeer(
  slots: number,
  context: number,
  measureOnce: (side: Side) => Promise<number>,
  options: Pick<PeerOptions, 'adapters'> = {},
  fixed: Partial<PeerForm> = {},
): Promise<BestPeer> {
  const tried: string[] = []
  const figureOf = async (form: PeerForm, name: string) => {
    const side = await startLlamaServer(slots, context, { ...options, ...form })
    try {
      await measureOnce(side)
      const figure = await measureOnce(side)
      tried.push(`${name} ${figure.toFixed(figure < 100 ? 1 : 0)}`)
      return figure
    } finally {
      await side.stop()
    }
  }
  let form = { ...firstForm(), ...fixed }
  let best = await figureOf(form, 'first form')
  for (const [field, values] of Object.entries(alternatives())) {
    if (field in fixed) continue
    for (const value of values) {
      const other = { ...form, [field]: value }
      const figure = await figureOf(other, `${field} ${String(value).replace(/.*\//, '')}`)
      if (figure > best) [form, best] = [other, figure]
    }
  }
  const them = await startLlamaServer(slots, context, { ...options, ...form })
  return { them, note: `${them.form}; tried: ${tried.join(', ')}` }
}
