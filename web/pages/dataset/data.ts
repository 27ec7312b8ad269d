// What the page asks of the service, beyond the dataset itself.
import { keepPreviousData, useQuery } from '@tanstack/react-query'
import type { Dataset, Validation } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'

export type Issue = NonNullable<Validation['issues']>[number]

/** Counting the tokens of many rows takes its time. */
export const slow_ms = 600_000

/** The base whose tokens are counted, and where rows are cut; undefined for the service's defaults. */
export interface Cut {
  model?: string | undefined
  length?: number | undefined
}

const queryOf = ({ model, length }: Cut) => ({
  ...(model && { model_id: model }),
  ...(length && { max_length: length }),
})

/** The check of all rows. A dataset never changes, so an answer stays true. */
export const useValidation = (dataset: Dataset, cut: Cut, enabled: boolean) =>
  useQuery({
    queryKey: ['datasets', dataset.id, 'validation', queryOf(cut)],
    queryFn: ({ signal }) => tunery.datasets.validate(dataset.id, queryOf(cut), { signal, timeout_ms: slow_ms }),
    enabled: enabled && dataset.status !== 'preparing',
    staleTime: Number.POSITIVE_INFINITY,
    placeholderData: keepPreviousData,
  })

export const usePreview = (dataset: Dataset, row: number, cut: Cut, enabled: boolean) =>
  useQuery({
    queryKey: ['datasets', dataset.id, 'preview', row, queryOf(cut)],
    queryFn: ({ signal }) =>
      // The client writes numbers of a query as digits.
      tunery.datasets.preview(dataset.id, { ...queryOf(cut), row }, { signal, timeout_ms: slow_ms }),
    enabled,
    staleTime: Number.POSITIVE_INFINITY,
    placeholderData: keepPreviousData,
  })

/** Bases whose tokenizer is here. */
export const useBases = () =>
  useQuery({
    queryKey: ['hub', 'list'],
    queryFn: ({ signal }) => tunery.hub.list({}, { signal }),
    staleTime: 60_000,
    select: ({ models }) => models.filter(({ weights, methods }) => weights.available && methods.length > 0),
  })

/** Formats whose lines are lines of text. */
export const hasLines = ({ format }: Dataset) => format === 'jsonl' || format === 'csv'

/** Larger files are not read for the sake of some lines. */
const readable_mb = 64

/** The text of lines of the uploaded file, by their numbers, as far as they can be shown. */
export const useLines = (dataset: Dataset, lines: readonly number[]) =>
  useQuery({
    queryKey: ['datasets', dataset.id, 'lines', lines],
    queryFn: ({ signal }) => readLines(dataset.id, new Set(lines), signal),
    enabled: lines.length > 0 && hasLines(dataset) && dataset.size_mb <= readable_mb,
    staleTime: Number.POSITIVE_INFINITY,
    placeholderData: keepPreviousData,
  })

/** Reads the file only up to the last line that is wanted. */
async function readLines(id: string, lines: ReadonlySet<number>, signal: AbortSignal): Promise<Map<number, string>> {
  const last = Math.max(...lines)
  const texts = new Map<number, string>()
  const { body } = await tunery.files.content(id, { signal, timeout_ms: slow_ms })
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let line = 1
  let rest = ''
  const finish = (text: string) => {
    if (lines.has(line)) texts.set(line, text.replace(/\r$/, ''))
    line++
  }
  try {
    while (line <= last) {
      const { done, value } = await reader.read()
      if (done) {
        finish(rest)
        break
      }
      const pieces = (rest + decoder.decode(value, { stream: true })).split('\n')
      rest = pieces.pop()!
      for (const piece of pieces) finish(piece)
    }
  } finally {
    await reader.cancel().catch(() => {})
  }
  return texts
}

/** The whole file as text, to be corrected. */
export const useText = (dataset: Dataset, enabled: boolean) =>
  useQuery({
    queryKey: ['datasets', dataset.id, 'text'],
    queryFn: async ({ signal }) => (await tunery.files.content(dataset.id, { signal, timeout_ms: slow_ms })).text(),
    enabled,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  })
