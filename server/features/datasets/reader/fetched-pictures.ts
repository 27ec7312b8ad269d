// Pictures of rows at addresses on the web: listed by one reading of the file, fetched by the server, and written into
// the rows by the next.
import { createReadStream } from 'node:fs'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { isAddress } from '../../../../pictures/data-urls.ts'
import { PictureError } from '../../../../pictures/formats.ts'
import { isPicture, type PictureCheck, type PicturePart } from '../row-pictures.ts'
import type { Problem } from '../row-problem.ts'

/** What became of an address: a file in the folder of fetched ones, or why there is none. */
export type Fetched = { file: string } | { problem: string }

/** The file in that folder that has what became of each address. */
export const fetchedIndex = 'index.json'

type FetchedPictures = (address: string) => Promise<Buffer>

/** Reads the folder of an upload's fetched pictures. The function throws PictureError for one that is not there. */
export async function openFetched(folder: string): Promise<FetchedPictures> {
  const index = new Map(Object.entries(JSON.parse(await readFile(path.join(folder, fetchedIndex), 'utf8'))))
  return async (address) => {
    const fetched = index.get(address) as Fetched | undefined
    if (fetched && 'file' in fetched) return await readFile(path.join(folder, fetched.file))
    throw new PictureError(fetched?.problem ?? 'The picture was not fetched.')
  }
}

type Place = { at: string; part: PicturePart }

/** The pictures of a row of any kind that are addresses, valid or not otherwise. */
function placesOf(row: object): Place[] {
  const { messages, prompt, chosen, rejected, input } = row as Record<string, unknown>
  const lists = { messages, prompt, chosen, rejected, 'input.messages': Object(input).messages }
  return Object.entries(lists).flatMap(([field, list]) =>
    !Array.isArray(list)
      ? []
      : list.flatMap((message, index) => {
          const { content } = Object(message)
          if (!Array.isArray(content)) return []
          return content.flatMap((part: unknown, number): Place[] => {
            const url = isPicture(part) ? Object(part.image_url).url : undefined
            const isOne = typeof url === 'string' && isAddress(url)
            return isOne ? [{ at: `: ${field}[${index}].content[${number}]`, part: part as PicturePart }] : []
          })
        }),
  )
}

export const addressesOf = (row: object): string[] => placesOf(row).map(({ part }) => part.image_url.url)

/** Replaces the addresses of a row, which it changes, by data URLs of files without metadata, upright. */
export async function embedFetched(
  row: object,
  fetched: FetchedPictures,
  pictures: PictureCheck,
): Promise<Problem | undefined> {
  for (const { at, part } of placesOf(row)) {
    try {
      part.image_url = { ...part.image_url, url: await pictures.normalized(await fetched(part.image_url.url)) }
    } catch (error) {
      if (error instanceof PictureError) return ['picture_not_fetched', `${at}: ${error.message}`]
      throw error
    }
  }
  return undefined
}

/** Lines of text with their line feeds; of a line longer than `bytes_max` only its beginning. */
export async function* boundedLines(file: string, bytes_max: number): AsyncGenerator<Buffer> {
  let rest: Buffer[] = []
  let bytes = 0
  const add = (piece: Buffer) => {
    if (bytes <= bytes_max) rest.push(piece)
    bytes += piece.length
  }
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 }) as AsyncIterable<Buffer>) {
    let from = 0
    for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, from)) {
      add(chunk.subarray(from, at + 1))
      yield rest.length === 1 ? rest[0]! : Buffer.concat(rest)
      rest = []
      bytes = 0
      from = at + 1
    }
    if (from < chunk.length) add(Buffer.from(chunk.subarray(from)))
  }
  if (bytes > 0) yield Buffer.concat(rest)
}

/** The object of a line with a picture at an address; undefined for other lines, which stay as they are. */
export function rowWithAddresses(line: Buffer): object | undefined {
  if (!line.includes('image_url') || !/"https?:/i.test(line.toString('latin1'))) return undefined
  try {
    const row = JSON.parse(line.toString('utf8').replace(/^\uFEFF/, ''))
    return typeof row === 'object' && row !== null && addressesOf(row).length > 0 ? row : undefined
  } catch {
    return undefined
  }
}
