import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useParams, useSearch } from '@tanstack/react-router'
import { Download, Ellipsis, Pencil, SlidersHorizontal, Trash2 } from 'lucide-react'
import { useCallback, useState } from 'react'
import { type Dataset, isTuneryError, type Validation } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { EditLabels } from '../../parts/edit-labels.tsx'
import { IconButton, LinkButton } from '../../ui/button.tsx'
import { EmptyState, ErrorState, Progress, SkeletonLines, Status } from '../../ui/feedback.tsx'
import { Card, Page, Tabs } from '../../ui/layout.tsx'
import { ConfirmDialog, Menu } from '../../ui/popups.tsx'
import { toast } from '../../ui/toast.tsx'
import { CutControls } from './cut-controls.tsx'
import { type Cut, useBases, useValidation } from './data.ts'
import { contentOf } from './mend.tsx'
import { MendFirst, Overview } from './overview.tsx'
import { Problems } from './problems.tsx'
import { Rows } from './rows.tsx'
import { Tokens } from './tokens.tsx'

const back = { to: '/datasets', label: 'Datasets' }

export default function DatasetPage() {
  const { datasetId } = useParams({ from: '/shell/datasets/$datasetId' })
  const query = useQuery({
    queryKey: ['datasets', datasetId],
    queryFn: ({ signal }) => tunery.datasets.get(datasetId, { signal }),
    refetchInterval: ({ state }) => (state.data?.status === 'preparing' ? refresh_ms : false),
  })
  if (query.data) return <Shown key={datasetId} dataset={query.data} />
  return (
    <Page title="Dataset" back={back}>
      <Card>
        {isTuneryError(query.error, 'dataset_not_found') ? (
          <EmptyState title="Dataset not found" action={<LinkButton to="/datasets">All datasets</LinkButton>}>
            It may have been deleted.
          </EmptyState>
        ) : query.isError ? (
          <ErrorState error={query.error} retry={() => void query.refetch()} />
        ) : (
          <SkeletonLines lines={5} />
        )}
      </Card>
    </Page>
  )
}

const tones = { preparing: 'accent', ready: 'neutral', valid: 'good', invalid: 'bad', unreadable: 'bad' } as const

function Shown({ dataset }: { dataset: Dataset }) {
  const mayTrain = useMay('tuning:write')
  const search = useSearch({ from: '/shell/datasets/$datasetId' })
  // The first base that is here stands for the rest until one is chosen: the default one need not be.
  const bases = useBases()
  const cut: Cut = { model: search.model ?? bases.data?.[0]?.id, length: search.length }
  const validation = useValidation(dataset, cut, !bases.isPending)
  const valid = validation.data?.valid
  const status = dataset.status === 'ready' && valid !== undefined ? (valid ? 'valid' : 'invalid') : dataset.status
  return (
    <Page
      title={dataset.name}
      status={<Status status={status} tone={tones[status]} />}
      back={back}
      actions={
        <>
          <Actions dataset={dataset} />
          {mayTrain && valid && (
            <LinkButton
              to="/jobs/new"
              search={{ dataset: dataset.id }}
              variant="primary"
              icon={<SlidersHorizontal aria-hidden />}
            >
              Train
            </LinkButton>
          )}
        </>
      }
    >
      {dataset.status === 'preparing' ? (
        <Card>
          <div role="status" className="mx-auto grid max-w-md gap-3 py-10 text-center">
            <p className="font-semibold">Reading rows</p>
            <Progress label="Reading rows" value={null} />
            <p className="text-muted">
              {dataset.format === 'huggingface'
                ? 'Downloading from the Hub first. You can leave this page.'
                : 'Large files take a few seconds. You can leave this page.'}
            </p>
          </div>
        </Card>
      ) : (
        <Parts dataset={dataset} validation={validation} cut={cut} />
      )}
    </Page>
  )
}

function Parts({
  dataset,
  validation,
  cut,
}: {
  dataset: Dataset
  validation: ReturnType<typeof useValidation>
  cut: Cut
}) {
  const navigate = useNavigate({ from: '/datasets/$datasetId' })
  const { tab = 'overview', row } = useSearch({ from: '/shell/datasets/$datasetId' })
  const go = useCallback(
    (changes: { tab?: string | undefined; row?: number }) =>
      void navigate({ search: (old) => ({ ...old, ...changes }), replace: true, resetScroll: false }),
    [navigate],
  )
  const onCut = useCallback(
    (next: Cut) => void navigate({ search: (old) => ({ ...old, ...next }), replace: true, resetScroll: false }),
    [navigate],
  )
  const onRow = useCallback((next: number) => go({ row: next }), [go])
  const { data } = validation
  const checking = data ? undefined : (
    <Card title={validation.isError ? 'Could not check the rows' : undefined}>
      {validation.isError ? (
        <div className="grid grid-cols-1 gap-4">
          <CutControls cut={cut} onChange={onCut} />
          <ErrorState error={validation.error} retry={() => void validation.refetch()} />
        </div>
      ) : (
        <div className="grid gap-3 py-2">
          <p role="status" className="text-muted">
            Checking rows and counting tokens…
          </p>
          <SkeletonLines lines={5} />
        </div>
      )}
    </Card>
  )
  const mendFirst = data && hasWrongRows(data) && <MendFirst validation={data} onMend={() => go({ tab: 'problems' })} />
  return (
    <Tabs
      label="Parts of the dataset"
      value={tab}
      onChange={(next) => go({ tab: next === 'overview' ? undefined : next })}
      tabs={[
        {
          value: 'overview',
          label: 'Overview',
          panel: data ? (
            <Overview
              dataset={dataset}
              validation={data}
              cut={cut}
              onCut={onCut}
              counting={validation.isFetching}
              error={validation.isError ? validation.error : null}
            />
          ) : (
            checking
          ),
        },
        {
          value: 'problems',
          label: 'Problems',
          count: data && (data.error_count ?? 0) + (data.warning_count ?? 0),
          panel: data ? <Problems dataset={dataset} validation={data} /> : checking,
        },
        {
          value: 'rows',
          label: 'Rows',
          count: dataset.rows,
          panel: mendFirst || <Rows dataset={dataset} row={row} onRow={onRow} />,
        },
        {
          value: 'tokens',
          label: 'Tokens',
          panel: mendFirst || (
            <Tokens dataset={dataset} row={row} onRow={onRow} cut={cut} onCut={onCut} inForce={data?.tokens} />
          ),
        },
      ]}
    />
  )
}

/** Whether rows are wrong for every base: then none can be shown. A base may also refuse rows that are well formed. */
const hasWrongRows = ({ valid, issues }: Validation) =>
  !valid && (issues?.some(({ code }) => code !== 'not_for_this_base' && code !== 'no_learned_tokens') ?? true)

function Actions({ dataset }: { dataset: Dataset }) {
  const may = useMay('datasets:write')
  const client = useQueryClient()
  const navigate = useNavigate()
  const [dialog, setDialog] = useState<'rename' | 'delete'>()
  const close = (open: boolean) => !open && setDialog(undefined)
  return (
    <>
      <Menu
        trigger={<IconButton label="More actions" variant="secondary" icon={<Ellipsis aria-hidden />} />}
        entries={[
          { label: 'Download file', icon: <Download aria-hidden />, href: contentOf(dataset) },
          ...(may
            ? [
                {
                  label: 'Edit name and description',
                  icon: <Pencil aria-hidden />,
                  onClick: () => setDialog('rename'),
                },
                null,
                {
                  label: 'Delete dataset',
                  icon: <Trash2 aria-hidden />,
                  danger: true,
                  onClick: () => setDialog('delete'),
                },
              ]
            : []),
        ]}
      />
      {dialog === 'rename' && <Rename dataset={dataset} onClose={() => setDialog(undefined)} />}
      <ConfirmDialog
        open={dialog === 'delete'}
        onOpenChange={close}
        title={`Delete “${dataset.name}”?`}
        action="Delete dataset"
        onConfirm={async () => {
          await tunery.datasets.delete(dataset.id)
          await navigate({ to: '/datasets' })
          client.removeQueries({ queryKey: ['datasets', dataset.id] })
          await client.invalidateQueries({ queryKey: ['datasets', 'list'] })
          toast.good('Dataset deleted', dataset.name)
        }}
      >
        <p>
          Its rows and file are deleted permanently. Models trained on it stay. It can't be deleted while a queued or
          running job or evaluation needs it.
        </p>
      </ConfirmDialog>
    </>
  )
}

function Rename({ dataset, onClose }: { dataset: Dataset; onClose: () => void }) {
  const client = useQueryClient()
  const save = async (labels: { name: string; description: string }) => {
    client.setQueryData(['datasets', dataset.id], await tunery.datasets.update(dataset.id, labels))
    await client.invalidateQueries({ queryKey: ['datasets', 'list'] })
  }
  return <EditLabels title="Edit dataset" labels={dataset} save={save} onClose={onClose} />
}
