import { useQueries } from '@tanstack/react-query'
import { useVirtualizer, type Virtualizer } from '@tanstack/react-virtual'
import { useEffect, useRef, useState } from 'react'
import type { Dataset, DatasetRow } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatCount, plural } from '../../lib/format.ts'
import { Button, TextLink } from '../../ui/button.tsx'
import { Notice, Skeleton } from '../../ui/feedback.tsx'
import { Form, NumberInput } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { Conversation } from './conversation.tsx'
import { slow_ms } from './data.ts'

/** Rows of one page, and of one with pictures. */
const textRows = 50
const pictureRows = 10
/** Until rows that have just been loaded are measured. */
const settle_ms = 100

/** All rows as conversations; only those that are seen are loaded and rendered. */
export function Rows({
  dataset,
  row,
  onRow,
}: {
  dataset: Dataset
  row?: number | undefined
  onRow: (row: number) => void
}) {
  const scroller = useRef<HTMLDivElement>(null)
  const virtualizer = useVirtualizer({
    count: dataset.rows,
    getScrollElement: () => scroller.current,
    estimateSize: () => 200,
    overscan: 3,
  })
  const items = virtualizer.getVirtualItems()
  const { rowAt, failed, loading } = useSeenRows(
    dataset,
    items.map(({ index }) => index),
  )
  const goTo = useGoTo(virtualizer, rowAt, dataset.rows, row)
  return (
    <Card
      title={plural(dataset.rows, 'row')}
      description="As the model reads them, in the order of the file."
      actions={
        <GoTo
          rows={dataset.rows}
          onGo={(next) => {
            goTo(next)
            onRow(next)
          }}
        />
      }
      flush
    >
      {failed && (
        <div className="px-4 pb-3">
          <Notice
            tone="bad"
            title="Some rows could not be loaded"
            action={
              <Button size="sm" onClick={() => void failed.refetch()}>
                Try again
              </Button>
            }
          >
            {failed.error?.message}
          </Notice>
        </div>
      )}
      <div
        ref={scroller}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
        tabIndex={0}
        role="feed"
        aria-label="Rows"
        aria-busy={loading}
        className="focus-inset max-h-[75dvh] min-h-64 overflow-y-auto border-t border-line"
      >
        <div className="relative" style={{ height: virtualizer.getTotalSize() }}>
          {items.map(({ index, key, start }) => {
            const row = rowAt(index)
            return (
              <article
                key={key}
                ref={virtualizer.measureElement}
                data-index={index}
                aria-posinset={index + 1}
                aria-setsize={dataset.rows}
                aria-label={`Row ${index + 1}`}
                className="absolute inset-x-0 border-b border-line px-4 py-3"
                style={{ transform: `translateY(${start}px)` }}
              >
                <div className="mb-2 flex flex-wrap items-baseline gap-x-3 text-sm">
                  <span className="font-medium">Row {formatCount(index + 1)}</span>
                  {row && row.line !== row.row && <span className="text-muted">line {formatCount(row.line)}</span>}
                  <TextLink
                    to="/datasets/$datasetId"
                    params={{ datasetId: dataset.id }}
                    search={(old) => ({ ...old, tab: 'tokens', row: index + 1 })}
                    className="ml-auto"
                    aria-label={`Tokens of row ${index + 1}`}
                  >
                    Tokens
                  </TextLink>
                </div>
                {row ? (
                  <Conversation messages={row.messages ?? []} rejected={row.rejected} />
                ) : (
                  <div className="grid gap-2">
                    <Skeleton className="h-12 w-full" />
                    <Skeleton className="h-12 w-full" />
                  </div>
                )}
              </article>
            )
          })}
        </div>
      </div>
    </Card>
  )
}

/** Loads the pages of the rows that are seen. */
function useSeenRows(dataset: Dataset, indexes: readonly number[]) {
  const pageRows = dataset.pictures > 0 ? pictureRows : textRows
  const pages = [...new Set(indexes.map((index) => Math.floor(index / pageRows)))]
  const loaded = useQueries({
    queries: pages.map((page) => ({
      queryKey: ['datasets', dataset.id, 'rows', page],
      queryFn: async ({ signal }: { signal: AbortSignal }) => {
        const rows: DatasetRow[] = []
        // An answer has fewer rows where they are large.
        for (let more = true; more && rows.length < pageRows; ) {
          const after = page * pageRows + rows.length
          const query = { limit: pageRows - rows.length, ...(after > 0 && { after }) }
          const answer = await tunery.datasets.rows(dataset.id, query, { signal, timeout_ms: slow_ms })
          rows.push(...answer.items)
          more = answer.has_more && answer.items.length > 0
        }
        return rows
      },
      staleTime: Number.POSITIVE_INFINITY,
    })),
  })
  const failed = loaded.find(({ isError, data }) => isError && !data)
  const rowAt = (index: number): DatasetRow | undefined =>
    loaded[pages.indexOf(Math.floor(index / pageRows))]?.data?.[index % pageRows]
  return { rowAt, failed, loading: loaded.some(({ isPending }) => isPending) }
}

/** Scrolls to a row, at first to `first`; returns how to go to another. */
function useGoTo(
  virtualizer: Virtualizer<HTMLDivElement, Element>,
  rowAt: (index: number) => DatasetRow | undefined,
  rows: number,
  first: number | undefined,
): (row: number) => void {
  // Where to go: at first where the address leads. Rows have their true height once they are there, so go again then.
  const [target, setTarget] = useState(first)
  const index = target ? Math.min(target, rows) - 1 : undefined
  const isThere = index !== undefined && rowAt(index) !== undefined
  useEffect(() => {
    if (index === undefined) return
    virtualizer.scrollToIndex(index, { align: 'start' })
    if (!isThere) return
    const timer = setTimeout(() => {
      virtualizer.scrollToIndex(index, { align: 'start' })
      setTarget(undefined)
    }, settle_ms)
    return () => clearTimeout(timer)
  }, [index, isThere, virtualizer])
  return setTarget
}

function GoTo({ rows, onGo }: { rows: number; onGo: (row: number) => void }) {
  const [row, setRow] = useState<number | null>(null)
  return (
    <Form
      className="flex! items-center gap-2!"
      onSubmit={() => row && onGo(Math.min(rows, Math.max(1, Math.round(row))))}
    >
      <div className="w-36">
        <NumberInput aria-label="Row to go to" placeholder="Row" value={row} onChange={setRow} min={1} max={rows} />
      </div>
      <Button type="submit">Go</Button>
    </Form>
  )
}
