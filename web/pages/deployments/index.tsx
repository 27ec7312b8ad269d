import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function DeploymentsPage() {
  return (
    <Page title="Deployments">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
