import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useParams } from '@tanstack/react-router'
import { Ellipsis, Pencil, Rocket, Trash2 } from 'lucide-react'
import { useState } from 'react'
import type { Deployment, LineageStep, TunedModelDetails } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatBytes, formatExport, formatNumber } from '../../lib/format.ts'
import { useMay } from '../../lib/session.ts'
import { DeployDialog } from '../../parts/deploy.tsx'
import { EditLabels } from '../../parts/edit-labels.tsx'
import { ModelName } from '../../parts/names.tsx'
import { Button, IconButton, LinkButton, TextLink } from '../../ui/button.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { Badge, EmptyState, Loaded, Notice, Status } from '../../ui/feedback.tsx'
import { Card, Facts, Page } from '../../ui/layout.tsx'
import { ConfirmDialog, Dialog, Menu } from '../../ui/popups.tsx'
import { Table } from '../../ui/table.tsx'
import { toast } from '../../ui/toast.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'
import { Shares } from './shares.tsx'

export default function ModelPage() {
  const { modelId } = useParams({ from: '/shell/models/$modelId' })
  const query = useQuery({
    queryKey: ['models', modelId],
    queryFn: ({ signal }) => tunery.models.get(modelId, { signal }),
  })
  return (
    <Page
      title={query.data?.name ?? 'Model'}
      back={{ to: '/models', label: 'Models' }}
      description={query.data?.description}
      actions={query.data && <Actions model={query.data} />}
    >
      <Loaded query={query}>
        {(model) => (
          <div className="grid gap-4">
            <div className="grid items-start gap-4 lg:grid-cols-2">
              <About model={model} />
              <Check model={model} />
            </div>
            <History model={model} />
            <Uses model={model} />
            <Shares model={model} />
          </div>
        )}
      </Loaded>
    </Page>
  )
}

function Actions({ model }: { model: TunedModelDetails }) {
  const mayTrain = useMay('tuning:write')
  const navigate = useNavigate()
  const client = useQueryClient()
  const mayDeploy = useMay('deployments:write')
  const [dialog, setDialog] = useState<'edit' | 'delete' | 'deploy'>()
  const close = () => setDialog(undefined)
  const deployments = useDeploymentsOf(model.id)
  return (
    <>
      {mayTrain && (
        <>
          <Menu
            trigger={<IconButton label="More actions" variant="secondary" icon={<Ellipsis aria-hidden />} />}
            entries={[
              { label: 'Edit name and notes', icon: <Pencil aria-hidden />, onClick: () => setDialog('edit') },
              null,
              { label: 'Delete model', icon: <Trash2 aria-hidden />, danger: true, onClick: () => setDialog('delete') },
            ]}
          />
          {deployments.length > 0 ? (
            <Dialog
              open={dialog === 'delete'}
              onOpenChange={(open) => !open && close()}
              title={`${model.name} is deployed`}
              description="Switch these deployments to another model or delete them, then delete this model."
              width="sm"
            >
              <DeploymentLinks deployments={deployments} />
            </Dialog>
          ) : (
            <ConfirmDialog
              open={dialog === 'delete'}
              onOpenChange={(open) => !open && close()}
              title={`Delete ${model.name}?`}
              action="Delete model"
              onConfirm={async () => {
                await tunery.models.delete(model.id)
                await navigate({ to: '/models' })
                client.removeQueries({ queryKey: ['models', model.id] })
                await client.invalidateQueries({ queryKey: ['models', 'list'] })
                toast.good('Model deleted', model.name)
              }}
            >
              Its weights are deleted. Finished exports stay until they expire.
            </ConfirmDialog>
          )}
          <LinkButton to="/jobs/new" search={{ model: model.id }}>
            Continue training
          </LinkButton>
        </>
      )}
      <LinkButton to="/exports" search={{ model: model.id }}>
        Export
      </LinkButton>
      <LinkButton to="/evaluations" search={{ model: model.id, baseline: model.base_model_id }}>
        Evaluate
      </LinkButton>
      <LinkButton to="/playground" search={{ models: `${model.base_model_id},${model.id}` }}>
        Compare with base
      </LinkButton>
      {mayDeploy && (
        <Button variant="primary" icon={<Rocket aria-hidden />} onClick={() => setDialog('deploy')}>
          Deploy
        </Button>
      )}
      {dialog === 'edit' && <Rename model={model} onClose={close} />}
      {dialog === 'deploy' && <DeployDialog model={model.id} suggestion={model.name} onClose={close} />}
    </>
  )
}

function useDeploymentsOf(model_id: string): Deployment[] {
  const { data } = useQuery({
    queryKey: ['deployments', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.deployments.list({ limit: 100 }, { signal }),
  })
  return data?.items.filter(({ model }) => model === model_id) ?? []
}

const DeploymentLinks = ({ deployments }: { deployments: readonly Deployment[] }) => (
  <span className="flex flex-wrap gap-x-3">
    {deployments.map(({ name }) => (
      <TextLink key={name} to="/deployments/$name" params={{ name }}>
        {name}
      </TextLink>
    ))}
  </span>
)

function Rename({ model, onClose }: { model: TunedModelDetails; onClose: () => void }) {
  const client = useQueryClient()
  const save = async (labels: { name: string; description: string }) => {
    await tunery.models.update(model.id, labels)
    await client.invalidateQueries({ queryKey: ['models'] })
  }
  return <EditLabels title="Name and notes" labels={model} save={save} onClose={onClose} />
}

function About({ model }: { model: TunedModelDetails }) {
  const { id, kind, base_model_id, method, size_mb, job_id, created_at, metadata } = model
  return (
    <Card title="Model">
      <Facts
        facts={[
          ['ID', <Code key="id">{id}</Code>],
          ['Kind', kind === 'adapter' ? 'Adapter' : 'Full weights'],
          ['Base', <ModelName key="base" id={base_model_id} />],
          ['Method', <Badge key="method">{method}</Badge>],
          ['Size', formatBytes(size_mb * 1e6)],
          [
            'Job',
            job_id ? (
              <TextLink key="job" to="/jobs/$jobId" params={{ jobId: job_id }}>
                View job
              </TextLink>
            ) : (
              'Imported'
            ),
          ],
          ['Created', <RelativeTime key="created" time={created_at} />],
          ...Object.entries(metadata).map(([key, value]) => [key, value] as const),
        ]}
      />
    </Card>
  )
}

/** Whether the engine serves what the trainer trained. */
function Check({ model: { comparison } }: { model: TunedModelDetails }) {
  return (
    <Card
      title={
        <>
          Serving check{' '}
          <Help word="this check">
            Training changes how likely each token is. This check compares that change in the trainer with what the
            engine serves, on fixed rows. A model that fails can't be deployed.
          </Help>
        </>
      }
    >
      {comparison ? (
        <div className="grid gap-3">
          <div>
            <Status status={comparison.agrees ? 'passed' : 'failed'} />
          </div>
          {comparison.problem && <Notice tone="bad">{comparison.problem}</Notice>}
          <Facts
            facts={[
              ['Rows', comparison.rows],
              ['Tokens', comparison.tokens],
              ['Effect of training', `${formatNumber(comparison.change)} nats per token`],
              ['Engine vs. trainer', `${formatNumber(comparison.difference)} nats per token`],
            ]}
          />
        </div>
      ) : (
        <EmptyState compact title="Not checked yet">
          The check runs when the model is first deployed.
        </EmptyState>
      )}
    </Card>
  )
}

/** As it was called then; its page has its name of today. */
const LineageModel = ({ step: { model_id, name } }: { step: LineageStep }) => (
  <TextLink to="/models/$modelId" params={{ modelId: model_id }}>
    {name ?? model_id}
  </TextLink>
)

function History({ model: { lineage } }: { model: TunedModelDetails }) {
  return (
    <Card title="Lineage" description={`Trained from ${lineage.base_model_id}`} flush>
      <Table
        label="Lineage"
        rows={lineage.steps}
        rowId={({ model_id }: LineageStep) => model_id}
        columns={[
          { id: 'name', header: 'Model', grow: true, cell: (each) => <LineageModel step={each} /> },
          { id: 'method', header: 'Method', cell: (each) => (each.method ? <Badge>{each.method}</Badge> : 'Imported') },
          { id: 'objective', header: 'Objective', from: 'md', cell: (each) => each.objective ?? '–' },
          {
            id: 'dataset',
            header: 'Dataset',
            from: 'sm',
            cell: ({ dataset }) =>
              dataset ? (
                <TextLink to="/datasets/$datasetId" params={{ datasetId: dataset.id }}>
                  {dataset.name ?? dataset.id}
                </TextLink>
              ) : (
                '–'
              ),
          },
          {
            id: 'hash',
            header: 'Fingerprint',
            from: 'lg',
            cell: (each) => (each.sha256 ? <Code>{each.sha256.slice(0, 12)}</Code> : '–'),
          },
          {
            id: 'job',
            header: 'Job',
            align: 'right',
            cell: (each) =>
              each.job_id ? (
                <TextLink to="/jobs/$jobId" params={{ jobId: each.job_id }}>
                  View job
                </TextLink>
              ) : (
                '–'
              ),
          },
        ]}
      />
    </Card>
  )
}

/** The deployments, evaluations and exports of it. */
function Uses({ model }: { model: TunedModelDetails }) {
  const deployments = useDeploymentsOf(model.id)
  const exports = useQuery({
    queryKey: ['exports', 'list', { model: model.id }],
    queryFn: ({ signal }) => tunery.exports.list({ model: model.id, limit: 20 }, { signal }),
  })
  const evaluations = useQuery({
    queryKey: ['evaluations', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.evaluations.list({ limit: 100 }, { signal }),
  })
  const judged = evaluations.data?.items.filter((each) => each.model === model.id || each.baseline === model.id) ?? []
  return (
    <Card title="Used by">
      <Facts
        facts={[
          [
            'Deployments',
            deployments.length > 0 ? <DeploymentLinks key="deployments" deployments={deployments} /> : 'None',
          ],
          [
            'Evaluations',
            judged.length > 0 ? (
              <span key="evaluations" className="flex flex-wrap gap-x-3">
                {judged.map(({ id, name }) => (
                  <TextLink key={id} to="/evaluations/$evaluationId" params={{ evaluationId: id }}>
                    {name}
                  </TextLink>
                ))}
              </span>
            ) : (
              'None'
            ),
          ],
          [
            'Exports',
            exports.data?.items.length
              ? exports.data.items.map(({ id, ...made }) => (
                  <TextLink key={id} to="/exports" search={{ open: id }} className="mr-3">
                    {formatExport(made)}
                  </TextLink>
                ))
              : 'None',
          ],
        ]}
      />
    </Card>
  )
}
