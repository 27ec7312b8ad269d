// Tables: sorted, selected and walked by keyboard; long ones render the rows that are seen.
import { Link } from '@tanstack/react-router'
import {
  createColumnHelper,
  createSortedRowModel,
  type Row,
  rowSortingFeature,
  sortFn_alphanumeric,
  sortFn_basic,
  tableFeatures,
  useTable,
} from '@tanstack/react-table'
import { useVirtualizer } from '@tanstack/react-virtual'
import { ArrowDown, ArrowUp } from 'lucide-react'
import { type KeyboardEvent, type ReactNode, type RefObject, useEffect, useMemo, useRef, useState } from 'react'
import { classes } from '../lib/classes.ts'
import { formatNumber } from '../lib/format.ts'
import { Button } from './button.tsx'
import { Checkbox } from './toggles.tsx'

export interface Column<T> {
  id: string
  header: ReactNode
  /** What the cell shows. Default: `value`. */
  cell?: (row: T) => ReactNode
  /** What the column sorts by. Without it the column does not sort. */
  value?: (row: T) => string | number | null | undefined
  /** `right` for numbers. */
  align?: 'left' | 'right'
  /** A CSS width. Default: as the content wants. */
  width?: string
  /** Leaves the column out on windows narrower than this. */
  from?: 'sm' | 'md' | 'lg'
  /**
   * Takes the room that is left, and cuts what is longer with an ellipsis. One column should. Others stay in a line.
   */
  grow?: boolean
}

/** What columns of buttons have in common: `{ ...actionsColumn, cell }`. */
export const actionsColumn = {
  id: 'actions',
  header: <span className="sr-only">Actions</span>,
  align: 'right',
} as const

interface TableProps<T> {
  /** What the rows are: the table's name for screen readers. */
  label: string
  columns: readonly Column<T>[]
  rows: readonly T[]
  rowId: (row: T) => string
  /** The page of a row: its first cell becomes the link, and the whole row leads there. */
  link?: ((row: T) => { to: string; params?: Record<string, string>; search?: Record<string, unknown> }) | undefined
  /** Instead of a page: opens something of the row. */
  onOpen?: ((row: T) => void) | undefined
  /** Ids of chosen rows, with a checkbox a row. */
  selected?: ReadonlySet<string>
  onSelect?: (selected: Set<string>) => void
  /** Sorted by this at first; clicks on headers change it. Rows otherwise stay in their order. */
  sort?: { id: string; desc: boolean }
  /** Stands in place of no rows. */
  empty?: ReactNode
  /** The rest of a list that is loaded by pages; see lib/pages.ts. */
  more?: { hasMore: boolean; loading: boolean; load: () => void }
  /** Largest height in CSS; the table then scrolls by itself. Tables of more than 100 rows always do. */
  maxHeight?: string
  /** Marks a row, such as one that got worse. */
  rowTone?: (row: T) => 'bad' | 'warn' | undefined
}

const features = tableFeatures({
  rowSortingFeature,
  sortedRowModel: createSortedRowModel(),
  sortFns: { alphanumeric: sortFn_alphanumeric, basic: sortFn_basic },
})
const virtualFrom = 100
const rowHeight = 44
const fromClasses = { sm: 'max-sm:hidden', md: 'max-md:hidden', lg: 'max-lg:hidden' }

/** The rows in the order that the reader chose. */
function useSorted<T extends object>({ columns, rows, rowId, sort }: TableProps<T>) {
  const definitions = useMemo(() => {
    const helper = createColumnHelper<typeof features, T>()
    return helper.columns(
      columns.map(({ id, value }) =>
        helper.accessor((row) => value?.(row) ?? undefined, {
          id,
          header: id,
          enableSorting: Boolean(value),
          sortUndefined: 'last',
          sortFn:
            typeof rows.map((row) => value?.(row)).find((each) => each != null) === 'string' ? 'alphanumeric' : 'basic',
        }),
      ),
    )
  }, [columns, rows])
  const data = useMemo(() => [...rows], [rows])
  return useTable({
    features,
    columns: definitions as never,
    data,
    getRowId: (row: T) => rowId(row),
    initialState: { sorting: sort ? [sort] : [] },
    enableMultiSort: false,
  })
}

/** The rows that are rendered: all of a short table, of a long one those that are seen. */
function useWindow<R extends { id: string }>(all: readonly R[]) {
  const virtual = all.length > virtualFrom
  const scroller = useRef<HTMLDivElement>(null)
  const virtualizer = useVirtualizer({
    count: all.length,
    enabled: virtual,
    getScrollElement: () => scroller.current,
    estimateSize: () => rowHeight,
    getItemKey: (index) => all[index]!.id,
    overscan: 12,
  })
  const items = virtual ? virtualizer.getVirtualItems() : undefined
  const shown = items
    ? items.map(({ index }) => ({ row: all[index]!, index }))
    : all.map((row, index) => ({ row, index }))
  /** Pixels of the rows that are not rendered. */
  const before = items?.[0]?.start ?? 0
  const after = items ? virtualizer.getTotalSize() - (items.at(-1)?.end ?? 0) : 0
  return { scroller, virtual, virtualizer, shown, before, after }
}

/** Arrows, Home and End walk from row to row; Tab still reaches every control. */
function useWalk(
  count: number,
  scroller: RefObject<HTMLDivElement | null>,
  scrollTo: ((index: number) => void) | undefined,
) {
  const [focusRow, setFocusRow] = useState<number>()
  // After every render: a row far away is rendered some frames after it was scrolled to.
  useEffect(() => {
    if (focusRow === undefined) return
    const row = scroller.current?.querySelector<HTMLElement>(`[data-row="${focusRow}"] [data-row-focus]`)
    if (!row) return
    row.focus()
    setFocusRow(undefined)
  })
  return (event: KeyboardEvent) => {
    const target = event.target as HTMLElement
    if (!target.matches('[data-row-focus]')) return
    const current = Number(target.closest<HTMLElement>('[data-row]')?.dataset.row)
    const to = { ArrowDown: current + 1, ArrowUp: current - 1, Home: 0, End: count - 1 }[event.key]
    if (to === undefined || to < 0 || to >= count) return
    event.preventDefault()
    scrollTo?.(to)
    setFocusRow(to)
  }
}

export function Table<T extends object>(props: TableProps<T>) {
  const { label, columns, rows, rowId, selected, onSelect, empty, more, maxHeight } = props
  const table = useSorted(props)
  const all = table.getRowModel().rows as unknown as Row<typeof features, T>[]
  const { scroller, virtual, virtualizer, before, after, shown } = useWindow(all)
  const walk = useWalk(all.length, scroller, virtual ? virtualizer.scrollToIndex : undefined)

  if (rows.length === 0 && empty) return empty
  const ids = rows.map(rowId)
  const chosen = selected ? ids.filter((id) => selected.has(id)).length : 0
  const choose = (id: string, on: boolean) => {
    const next = new Set(selected)
    if (on) next.add(id)
    else next.delete(id)
    onSelect?.(next)
  }
  const width = columns.length + (selected ? 1 : 0)
  return (
    <div>
      {/* biome-ignore lint/a11y/useSemanticElements: a section would be one more landmark of the page */}
      <div
        ref={scroller}
        role="group"
        aria-label={label}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
        tabIndex={0}
        className="focus-inset relative overflow-auto rounded-b-lg"
        style={{ maxHeight: maxHeight ?? (virtual ? 'min(70vh, 48rem)' : undefined) }}
        onKeyDown={walk}
      >
        <table
          aria-label={label}
          aria-rowcount={virtual ? all.length + 1 : undefined}
          className="w-full border-separate border-spacing-0 text-left"
        >
          <thead>
            <tr aria-rowindex={virtual ? 1 : undefined}>
              {selected && (
                <th scope="col" className={classes(headClass, 'w-10')}>
                  <Checkbox
                    label={`All of ${label}`}
                    hideLabel
                    checked={chosen > 0 && chosen === ids.length}
                    indeterminate={chosen > 0 && chosen < ids.length}
                    onChange={(on) => onSelect?.(new Set(on ? ids : []))}
                  />
                </th>
              )}
              {columns.map((column) => (
                <HeadCell
                  key={column.id}
                  column={column}
                  columns={columns.length}
                  sorted={table.getColumn(column.id)?.getIsSorted()}
                  onSort={() => table.getColumn(column.id)?.toggleSorting()}
                />
              ))}
            </tr>
          </thead>
          <tbody>
            {before > 0 && <Spacer height={before} width={width} />}
            {shown.map(({ row, index }) => (
              <BodyRow
                key={row.id}
                {...props}
                row={row.original}
                id={row.id}
                index={index}
                measure={virtual ? virtualizer.measureElement : undefined}
                onChoose={choose}
              />
            ))}
            {after > 0 && <Spacer height={after} width={width} />}
          </tbody>
        </table>
      </div>
      {more?.hasMore && (
        <div className="flex justify-center border-t border-line p-3">
          <Button size="sm" busy={more.loading} onClick={more.load}>
            Load more
          </Button>
        </div>
      )}
    </div>
  )
}

const headClass =
  'sticky top-0 z-10 h-9 border-b border-line bg-surface px-3 text-sm font-medium whitespace-nowrap ' +
  'text-muted first:pl-4 last:pr-4'
const cellClass = 'relative border-b border-line px-3 py-2.5 align-middle first:pl-4 last:pr-4 group-last:border-b-0'

function HeadCell<T>({
  column,
  columns,
  sorted,
  onSort,
}: {
  column: Column<T>
  /** How many there are. */
  columns: number
  sorted: 'asc' | 'desc' | false | undefined
  onSort: () => void
}) {
  return (
    <th
      scope="col"
      aria-sort={sorted === 'asc' ? 'ascending' : sorted === 'desc' ? 'descending' : undefined}
      className={classes(
        headClass,
        column.align === 'right' && 'text-right',
        column.from && fromClasses[column.from],
        // Beside many columns the table scrolls before this one is cut to nothing.
        column.grow && columns > 6 && 'min-w-44',
      )}
      style={{ width: column.width }}
    >
      {column.value ? (
        <button
          type="button"
          className="-mx-1 inline-flex items-center gap-1 rounded-sm px-1 hover:text-ink [&_svg]:size-3.5"
          onClick={onSort}
        >
          {column.header}
          {sorted === 'asc' ? <ArrowUp aria-hidden /> : sorted === 'desc' ? <ArrowDown aria-hidden /> : null}
        </button>
      ) : (
        column.header
      )}
    </th>
  )
}

function BodyRow<T extends object>({
  row,
  id,
  index,
  measure,
  onChoose,
  columns,
  link,
  onOpen,
  selected,
  rowTone,
}: TableProps<T> & {
  row: T
  id: string
  index: number
  /** Only for a table whose rows are not all rendered. */
  measure: ((element: HTMLTableRowElement | null) => void) | undefined
  onChoose: (id: string, on: boolean) => void
}) {
  const tone = rowTone?.(row)
  return (
    <tr
      data-row={index}
      data-index={index}
      ref={measure}
      aria-rowindex={measure ? index + 2 : undefined}
      className={classes(
        'group',
        (link || onOpen) && 'hover:bg-hover',
        tone === 'bad' && 'bg-bad-soft',
        tone === 'warn' && 'bg-warn-soft',
        selected?.has(id) && 'bg-accent-soft',
      )}
    >
      {selected && (
        <td className={cellClass}>
          <Checkbox label={`Choose ${id}`} hideLabel checked={selected.has(id)} onChange={(on) => onChoose(id, on)} />
        </td>
      )}
      {columns.map((column, place) => (
        <Cell key={column.id} column={column} row={row} opens={place === 0} link={link} onOpen={onOpen} />
      ))}
    </tr>
  )
}

type CellProps<T> = { column: Column<T>; row: T; opens: boolean } & Pick<TableProps<T>, 'link' | 'onOpen'>

function Cell<T>(props: CellProps<T>) {
  const { column } = props
  return (
    <td
      className={classes(
        cellClass,
        column.align === 'right' && 'text-right',
        column.from && fromClasses[column.from],
        column.grow ? 'w-full max-w-0 truncate' : 'whitespace-nowrap',
      )}
    >
      <Content {...props} />
    </td>
  )
}

function Content<T>({ column, row, opens, link, onOpen }: CellProps<T>) {
  const value = column.value?.(row)
  const content = column.cell ? column.cell(row) : typeof value === 'number' ? formatNumber(value, 6) : value
  if (!opens || !(link || onOpen)) return content
  // The name is the link; its ::after covers the cell, so that it is easy to hit.
  const className =
    'block min-w-0 truncate rounded-sm text-left font-medium text-ink decoration-edge underline-offset-2 ' +
    'group-hover:underline after:absolute after:inset-0'
  if (link)
    return (
      <Link {...(link(row) as { to: string })} data-row-focus="" className={className} preload="intent">
        {content}
      </Link>
    )
  return (
    <button type="button" data-row-focus="" className={classes(className, 'w-full')} onClick={() => onOpen?.(row)}>
      {content}
    </button>
  )
}

/** Stands for the rows that are not rendered. */
const Spacer = ({ height, width }: { height: number; width: number }) => (
  <tr aria-hidden>
    <td colSpan={width} style={{ height, padding: 0 }} />
  </tr>
)
