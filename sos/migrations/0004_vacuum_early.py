from django.db import migrations

from casualmeet.vacuuming import vacuum_early


class Migration(migrations.Migration):

    dependencies = [
        ('sos', '0003_operations'),
    ]

    operations = [
        vacuum_early('sos_sosevent'),
    ]
