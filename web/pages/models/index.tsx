import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function ModelsPage() {
  return (
    <Page title="Models">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
