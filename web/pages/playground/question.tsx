// A question of the conversation, and what each column answered.
import { Pencil } from 'lucide-react'
import type { ReactNode } from 'react'
import { plural } from '../../lib/format.ts'
import { IconButton } from '../../ui/button.tsx'
import { LongText } from '../../ui/long-text.tsx'
import { Thumbnails } from '../../ui/pictures.tsx'
import { gridOf } from './models.tsx'
import type { Column, Turn } from './state.ts'

export function Question({
  turn,
  columns,
  editable,
  onEdit,
  answerOf,
}: {
  turn: Turn
  columns: readonly Column[]
  editable: boolean
  onEdit: () => void
  answerOf: (column: Column, index: number) => ReactNode
}) {
  return (
    <section aria-label={`Question: ${turn.user.slice(0, 80)}`} className="grid grid-cols-[minmax(0,1fr)] gap-3">
      <div className="group flex items-start justify-end gap-2">
        <IconButton
          size="sm"
          label="Edit and resend"
          icon={<Pencil aria-hidden />}
          disabled={!editable}
          onClick={onEdit}
        />
        <div className="grid max-w-2xl min-w-0 gap-2 rounded-lg bg-accent-soft px-4 py-2">
          <Thumbnails urls={turn.pictures ?? []} name="of the question" />
          {turn.lost && (
            <p className="text-sm text-muted">{plural(turn.lost, 'picture')} not kept after reloading the page.</p>
          )}
          {turn.user && <LongText text={turn.user} />}
        </div>
      </div>
      <div className="grid gap-3" style={gridOf(columns.length)}>
        {columns.map(answerOf)}
      </div>
    </section>
  )
}
