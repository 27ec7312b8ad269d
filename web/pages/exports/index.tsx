import { useQueryClient } from '@tanstack/react-query'
import { useNavigate, useSearch } from '@tanstack/react-router'
import { PackageOpen, Plus } from 'lucide-react'
import { useState } from 'react'
import type { Export } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatExport, formatPercent } from '../../lib/format.ts'
import { usePages } from '../../lib/pages.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { ModelText } from '../../parts/names.tsx'
import { Button, ExternalLink } from '../../ui/button.tsx'
import { EmptyState, Loaded, Progress, Status } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { type Column, Table } from '../../ui/table.tsx'
import { Bytes, RelativeTime } from '../../ui/values.tsx'
import { ExportDetails, stageOf } from './details.tsx'
import { NewExport } from './new.tsx'

const isMaking = ({ status }: Export) => status === 'queued' || status === 'running'

const columns: readonly Column<Export>[] = [
  { id: 'model', header: 'Model', grow: true, cell: (each) => <ModelText id={each.model} /> },
  { id: 'format', header: 'Format', cell: formatExport },
  {
    id: 'status',
    header: 'Status',
    cell: (each) =>
      each.status === 'running' ? (
        <span className="grid w-32 gap-1 text-xs text-muted">
          <Progress value={each.progress} label={stageOf(each)} />
          <span className="flex justify-between gap-2">
            <span className="truncate">{stageOf(each)}</span>
            <span>{formatPercent(each.progress)}</span>
          </span>
        </span>
      ) : (
        <Status status={each.status} />
      ),
  },
  { id: 'size', header: 'Size', align: 'right', from: 'sm', cell: (each) => <Bytes value={each.size_bytes} /> },
  {
    id: 'created',
    header: 'Created',
    align: 'right',
    from: 'md',
    cell: (each) => <RelativeTime time={each.created_at} />,
  },
]

export default function ExportsPage() {
  const mayWrite = useMay('exports:write')
  const client = useQueryClient()
  const { model, open: shown } = useSearch({ from: '/shell/exports' })
  const navigate = useNavigate()
  const [creating, setCreating] = useState(model !== undefined)
  const close = () => {
    setCreating(false)
    return navigate({ to: '/exports', replace: true })
  }
  const [openId, setOpenId] = useState<string | undefined>(shown)
  const { query, rows, more } = usePages(
    ['exports', 'list', {}],
    (options) => tunery.exports.list({ limit: 50 }, options),
    { refresh_ms },
  )
  const open = rows?.find(({ id }) => id === openId)
  const create = mayWrite && (
    <Button variant="primary" icon={<Plus aria-hidden />} onClick={() => setCreating(true)}>
      Export a model
    </Button>
  )
  return (
    <Page
      title="Exports"
      description={
        <>
          Download your models. Every export is checked against the trained model first.{' '}
          <ExternalLink href="/docs/guides/export">Formats</ExternalLink>
        </>
      }
      actions={create}
    >
      <Card flush>
        <Loaded query={query}>
          {() => (
            <Table
              label="Exports"
              columns={columns}
              rows={rows ?? []}
              rowId={({ id }) => id}
              onOpen={({ id }) => setOpenId(id)}
              more={more}
              empty={
                <EmptyState icon={<PackageOpen aria-hidden />} title="No exports yet" action={create}>
                  Download your weights for transformers and vLLM, as GGUF, or as ONNX.
                </EmptyState>
              }
            />
          )}
        </Loaded>
      </Card>
      {creating && mayWrite && (
        <NewExport
          of={model}
          onClose={() => void close()}
          onCreated={async (id) => {
            await close()
            await client.invalidateQueries({ queryKey: ['exports'] })
            setOpenId(id)
          }}
        />
      )}
      {open && (
        <ExportDetails made={open} making={isMaking(open)} mayWrite={mayWrite} onClose={() => setOpenId(undefined)} />
      )}
    </Page>
  )
}
