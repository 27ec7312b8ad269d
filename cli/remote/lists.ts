// Lists as commands show them.
import type { PagePromise } from '../../sdk/index.ts'
import type { Program } from '../support/options.ts'
import { wholeNumber } from '../support/options.ts'

/** Lists show this many unless --limit says otherwise. */
const shownByDefault = 20
/** Most items of a page. */
const pageMax = 100

export interface ListOptions {
  limit: number
  name?: string
}

/** The options of a list. */
export const listOptions = (command: Program): Program =>
  command.option('--limit <count>', 'how many, at most', wholeNumber('--limit', 1), shownByDefault)

/** All items of a list. */
export async function all<Item>(list: AsyncIterable<Item>): Promise<Item[]> {
  const items: Item[] = []
  for await (const item of list) items.push(item)
  return items
}

export const pageOf = ({ limit }: ListOptions): number => Math.min(limit, pageMax)

/** The first items of a list, and what to say if there are more. */
export async function first<Item>(
  list: PagePromise<Item>,
  { limit }: ListOptions,
): Promise<{ items: Item[]; more: string | undefined }> {
  const items: Item[] = []
  for await (const item of list) {
    if (items.length === limit) return { items, more: 'There are more: --limit shows them.' }
    items.push(item)
  }
  return { items, more: undefined }
}
