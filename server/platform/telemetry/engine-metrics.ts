// The metrics of this process's engines as one answer to a scrape.

interface EngineText {
  /** `shared` for the engine of all models; a replica's place on the machine. */
  engine: string
  /** Its metrics in the text format. */
  text: string
}

/** One text: each metric once, and each engine's series with its label `engine`. */
export function mergeEngineTexts(engines: readonly EngineText[]): string | undefined {
  const metrics = new Map<string, { head: Set<string>; samples: string[] }>()
  for (const { engine, text } of engines) {
    let metric: { head: Set<string>; samples: string[] } | undefined
    for (const line of text.split('\n')) {
      const name = /^# (?:HELP|TYPE) (\S+)/.exec(line)?.[1]
      if (name !== undefined) {
        metric = metrics.get(name) ?? { head: new Set(), samples: [] }
        metrics.set(name, metric)
        metric.head.add(line)
      } else if (line !== '') metric?.samples.push(withLabel(line, engine))
    }
  }
  if (metrics.size === 0) return undefined
  return `${[...metrics.values()].flatMap(({ head, samples }) => [...head, ...samples]).join('\n')}\n`
}

function withLabel(sample: string, engine: string): string {
  const label = `engine="${engine.replace(/[\\"]/g, '\\$&')}"`
  return sample.replace(/^(\w+)(?:\{(.*)\})? /, (_, name: string, labels?: string) =>
    labels ? `${name}{${label},${labels}} ` : `${name}{${label}} `,
  )
}
