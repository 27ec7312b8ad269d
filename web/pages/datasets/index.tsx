import { useNavigate, useSearch } from '@tanstack/react-router'
import { Database, Search } from 'lucide-react'
import { useEffect, useRef, useState } from 'react'
import type { Dataset, DatasetFields } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { usePages } from '../../lib/pages.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay, useSession } from '../../lib/session.ts'
import { Button } from '../../ui/button.tsx'
import { EmptyState, ErrorState, Notice, SkeletonLines, Status } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { SearchInput } from '../../ui/search-input.tsx'
import { type Column, Table } from '../../ui/table.tsx'
import { Bytes, Count, RelativeTime } from '../../ui/values.tsx'
import { ColumnsDialog, unknownColumns } from './columns-dialog.tsx'
import { UploadCard } from './upload-card.tsx'
import { isActive, startUpload, useUploads } from './uploads.ts'
import { UploadsList } from './uploads-list.tsx'

const kinds = { sft: 'Conversations', dpo: 'Preference pairs', kto: 'Rated answers', reinforcement: 'Prompts' }

const columns: Column<Dataset>[] = [
  { id: 'name', header: 'Name', cell: (row) => row.name, grow: true },
  {
    id: 'status',
    header: 'Status',
    cell: (row) =>
      row.error_count > 0 ? <Status status="invalid" /> : <Status status={row.status} tone={tones[row.status]} />,
  },
  {
    id: 'kind',
    header: 'Type',
    cell: (row) => row.objectives.map((objective) => kinds[objective]).join(', ') || '–',
    from: 'lg',
  },
  { id: 'rows', header: 'Rows', align: 'right', cell: (row) => <Count value={row.rows} />, from: 'sm' },
  { id: 'size', header: 'Size', align: 'right', cell: (row) => <Bytes value={row.size_mb * 1e6} />, from: 'md' },
  { id: 'created', header: 'Added', align: 'right', cell: (row) => <RelativeTime time={row.created_at} />, from: 'md' },
]
const tones = { preparing: 'accent', ready: 'good', unreadable: 'bad' } as const

export default function DatasetsPage() {
  const may = useMay('datasets:write')
  const mayRead = useMay('datasets:read')
  const navigate = useNavigate()
  const account = useSession().profile.account.id
  const uploads = useUploads(account)
  const started = useRef<string>(undefined)
  const [unmapped, setUnmapped] = useState<{ file: File; fields: DatasetFields; columns: string[] }>()
  const start = (file: File, fields: DatasetFields) => {
    started.current = startUpload(account, file, fields)
  }
  const send = async (file: File, fields: DatasetFields = {}) => {
    const columns = fields.format ? undefined : await unknownColumns(file)
    if (columns) setUnmapped({ file, fields, columns })
    else start(file, fields)
  }

  // The only upload that was begun here leads to its check, once it is there.
  const arrived = uploads.find(({ id, dataset }) => id === started.current && dataset)?.dataset
  useEffect(() => {
    if (!arrived || uploads.some(isActive)) return
    started.current = undefined
    void navigate({ to: '/datasets/$datasetId', params: { datasetId: arrived.id } })
  }, [arrived, uploads, navigate])

  return (
    <Page title="Datasets" description="Examples to train on: prompts and the answers you want.">
      <div className="grid gap-5">
        {may ? (
          <>
            <UploadCard send={send} />
            {unmapped && (
              <ColumnsDialog
                name={unmapped.fields.name ?? unmapped.file.name}
                columns={unmapped.columns}
                open
                onOpenChange={() => setUnmapped(undefined)}
                onMapped={(columns) => start(unmapped.file, { ...unmapped.fields, columns })}
              />
            )}
          </>
        ) : (
          <Notice title="Read-only access">Ask an owner of the account for a role that can add datasets.</Notice>
        )}
        <UploadsList uploads={uploads} />
        {mayRead ? (
          <List mayAdd={may} />
        ) : (
          <Notice title="No access">Ask an owner of the account for a role that can view datasets.</Notice>
        )}
      </div>
    </Page>
  )
}

function List({ mayAdd }: { mayAdd: boolean }) {
  const navigate = useNavigate()
  const { q } = useSearch({ from: '/shell/datasets' })
  const search = (q?: string) => void navigate({ to: '/datasets', search: { q }, replace: true })
  // Rows that are still being read change by themselves.
  const [preparing, setPreparing] = useState(false)
  const { query, rows, more } = usePages(
    ['datasets', 'list', { name: q }],
    (options) => tunery.datasets.list({ limit: 50, ...(q && { name: q }) }, options),
    preparing ? { refresh_ms } : {},
  )
  const isPreparing = rows?.some(({ status }) => status === 'preparing') ?? false
  useEffect(() => setPreparing(isPreparing), [isPreparing])

  return (
    <Card title="All datasets" flush actions={<SearchInput className="w-56" value={q} onChange={search} />}>
      {rows ? (
        <Table
          label="Datasets"
          columns={columns}
          rows={rows}
          rowId={({ id }) => id}
          link={({ id }) => ({ to: '/datasets/$datasetId', params: { datasetId: id } })}
          more={more}
          empty={
            q ? (
              <EmptyState
                icon={<Search />}
                title={`No datasets match “${q}”`}
                action={<Button onClick={() => search()}>Clear search</Button>}
              />
            ) : (
              <EmptyState icon={<Database />} title="No datasets yet">
                {mayAdd
                  ? 'Upload a file above. A few dozen good examples are enough to see a difference.'
                  : 'Datasets added by others in your account appear here.'}
              </EmptyState>
            )
          }
        />
      ) : query.isError ? (
        <ErrorState error={query.error} retry={() => void query.refetch()} />
      ) : (
        <div className="p-4">
          <SkeletonLines lines={4} />
        </div>
      )}
    </Card>
  )
}
