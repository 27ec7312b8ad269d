import { createReadStream } from 'node:fs'
import { createInterface } from 'node:readline'

interface RowLoss {
  row: number
  loss: number
  first_loss: number
  tokens: number
}

/** A page of the file of row losses, which the trainer wrote worst first: up to `limit` after the row `after`. */
export async function strangestRows(file: string, limit: number, after: number | undefined): Promise<{ items: RowLoss[]; has_more: boolean }> {
  const items: RowLoss[] = []
  let begun = after === undefined
  const input = createReadStream(file)
  try {
    for await (const line of createInterface({ input })) {
      const item = JSON.parse(line) as RowLoss
      if (!begun) {
        begun = item.row === after
        continue
      }
      if (items.length === limit) return { items, has_more: true }
      items.push(item)
    }
  } catch (error) {
    // Models of before this report have none.
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  } finally {
    input.destroy()
  }
  return { items, has_more: false }
}
