// Reads rows of datasets by number. It remembers where every thousandth row begins, so that paging through a dataset
// does not read the rows before each page again.
import { type LineStart, readNumberedJsonl } from '../../../lib/jsonl.ts'

const every = 1000
/** A million rows have 1,000 places, some 60 kB. */
const datasetsMax = 64

interface RowReader {
  /** The rows of a dataset's file from number `first` on, counted from 1, with their lines in it. */
  from(id: string, file: string, first: number): AsyncGenerator<{ row: number; line: number; json: string }>
}

export function createRowReader(): RowReader {
  /** Where the rows 1, 1001, 2001, … begin, as far as they were read. The least recently used dataset is first. */
  const cache = new Map<string, LineStart[]>()

  function placesOf(id: string): LineStart[] {
    const places = cache.get(id) ?? [{ line: 0, offset: 0 }]
    cache.delete(id)
    cache.set(id, places)
    if (cache.size > datasetsMax) cache.delete(cache.keys().next().value!)
    return places
  }

  return {
    async *from(id, file, first) {
      const places = placesOf(id)
      const nearest = Math.min(Math.floor((first - 1) / every), places.length - 1)
      let row = nearest * every
      for await (const { line, json, offset } of readNumberedJsonl(file, undefined, places[nearest])) {
        if (row === places.length * every) places.push({ line: line - 1, offset })
        if (++row >= first) yield { row, line, json }
      }
    },
  }
}
