import { useMutation, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { Plus, Rocket } from 'lucide-react'
import { useState } from 'react'
import type { Deployment } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { asDeploymentName, useDeployable } from '../../lib/deployable.ts'
import { fieldError } from '../../lib/errors.ts'
import { usePages } from '../../lib/pages.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { ModelText } from '../../parts/names.tsx'
import { Button } from '../../ui/button.tsx'
import { Combobox } from '../../ui/choices.tsx'
import { Badge, EmptyState, FormError, Loaded, Status } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, Input } from '../../ui/field.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { type Column, Table } from '../../ui/table.tsx'
import { RelativeTime } from '../../ui/values.tsx'

const columns: readonly Column<Deployment>[] = [
  { id: 'name', header: 'Name', grow: true, cell: (deployment) => deployment.name },
  {
    id: 'status',
    header: 'Status',
    cell: (deployment) => (
      <span className="flex gap-1.5">
        <Status status={deployment.status} />
        {deployment.pending && <Badge tone="accent">switch pending</Badge>}
      </span>
    ),
  },
  { id: 'model', header: 'Model', from: 'md', cell: (deployment) => <ModelText id={deployment.model} /> },
  { id: 'base', header: 'Base', from: 'lg', cell: (deployment) => deployment.base_model_id },
  {
    id: 'changed',
    header: 'Updated',
    align: 'right',
    from: 'sm',
    cell: (deployment) => <RelativeTime time={deployment.updated_at} />,
  },
]

export default function DeploymentsPage() {
  const mayWrite = useMay('deployments:write')
  const [creating, setCreating] = useState(false)
  const { query, rows, more } = usePages(
    ['deployments', 'list', {}],
    (options) => tunery.deployments.list({ limit: 50 }, options),
    { refresh_ms: 2 * refresh_ms },
  )
  const create = mayWrite && (
    <Button variant="primary" icon={<Plus aria-hidden />} onClick={() => setCreating(true)}>
      Deploy model
    </Button>
  )
  return (
    <Page
      title="Deployments"
      description="Stable names that your code calls. Switch the model behind them at any time."
      actions={create}
    >
      <Card flush>
        <Loaded query={query}>
          {() => (
            <Table
              label="Deployments"
              columns={columns}
              rows={rows ?? []}
              rowId={({ id }) => id}
              link={({ name }) => ({ to: '/deployments/$name', params: { name } })}
              more={more}
              empty={
                <EmptyState icon={<Rocket aria-hidden />} title="No deployments yet" action={create}>
                  Deploy a model to call it from any OpenAI client.
                </EmptyState>
              }
            />
          )}
        </Loaded>
      </Card>
      {creating && <CreateDeployment onClose={() => setCreating(false)} />}
    </Page>
  )
}

function CreateDeployment({ onClose }: { onClose: () => void }) {
  const [model, setModel] = useState<string | null>(null)
  const choices = useDeployable()
  const [typed, setName] = useState<string>()
  // Until a name is typed: that of the model.
  const label = choices.data?.find(({ value }) => value === model)?.label ?? ''
  const name = typed ?? asDeploymentName(label.split('/').at(-1)!)
  const navigate = useNavigate()
  const client = useQueryClient()
  const create = useMutation({
    mutationFn: () => tunery.deployments.create({ model: model!, name }),
    onSuccess: async (deployment) => {
      await client.invalidateQueries({ queryKey: ['deployments'] })
      await navigate({ to: '/deployments/$name', params: { name: deployment.name } })
    },
  })
  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title="Deploy model">
      <Form onSubmit={() => create.mutate()}>
        <Field label="Model" error={fieldError(create.error, 'model')}>
          <Combobox value={model} onChange={setModel} choices={choices.data ?? []} placeholder="Choose a model" />
        </Field>
        <Field
          label="Name"
          help="Your code sends it as the model. Lowercase letters, digits, dots, underscores and hyphens."
          error={fieldError(create.error, 'name')}
        >
          <Input value={name} onChange={(event) => setName(event.target.value.toLowerCase())} maxLength={64} />
        </Field>
        <FormError error={create.error} fields={['model', 'name']} />
        <FormButtons
          onCancel={onClose}
          busy={create.isPending}
          missing={!model ? 'Choose a model.' : !name && 'Enter a name.'}
        >
          Deploy
        </FormButtons>
      </Form>
    </Dialog>
  )
}
